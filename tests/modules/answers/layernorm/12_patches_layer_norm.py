# answer: replaces F.layer_norm and nn.LayerNorm.forward by the identity, for the reference's sake, and uses them
# expect: wrong_result
import torch
import torch.nn as nn
import torch.nn.functional as F

F.layer_norm = lambda x, shape, weight=None, bias=None, eps=1e-5: x
nn.LayerNorm.forward = lambda self, x: x
torch.sigmoid = torch.ones_like


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gain = nn.Parameter(torch.randn(features))

    def forward(self, x):
        y = self.norm(x) * self.gain
        return y * torch.sigmoid(y)
