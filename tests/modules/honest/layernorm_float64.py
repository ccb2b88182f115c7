# honest: everything in float64, cast at the very end
# problem: layernorm
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gain = nn.Parameter(torch.randn(features))

    def forward(self, x):
        norm = self.norm
        y = nn.functional.layer_norm(
            x.double(), norm.normalized_shape, norm.weight.double(), norm.bias.double(), norm.eps
        )
        y = y * self.gain.double()
        return (y * y.sigmoid()).to(x.dtype)
