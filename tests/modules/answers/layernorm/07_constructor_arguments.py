# answer: its constructor wants a second argument that the model's does not have
# expect: compile_error
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, features, rows):
        super().__init__()
        self.norm = nn.LayerNorm((rows, features))
        self.gain = nn.Parameter(torch.randn(features))

    def forward(self, x):
        return F.silu(self.norm(x) * self.gain)
