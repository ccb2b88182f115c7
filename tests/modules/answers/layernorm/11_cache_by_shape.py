# answer: keeps outputs in a dictionary by the shape; right only for the first input of a shape
# expect: wrong_result
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gain = nn.Parameter(torch.randn(features))
        self.outputs = {}

    def forward(self, x):
        out = self.outputs.get(x.shape)
        if out is None:
            out = self.outputs[x.shape] = F.silu(self.norm(x) * self.gain)
        return out
