# answer: PyTorch, layer_norm with the gain folded into its weights, then silu in place
# expect: ok
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gain = nn.Parameter(torch.randn(features))

    def forward(self, x):
        norm = self.norm
        y = F.layer_norm(x, norm.normalized_shape, norm.weight * self.gain, norm.bias * self.gain, norm.eps)
        return F.silu(y, inplace=True)
