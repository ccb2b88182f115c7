import torch
import torch.nn as nn


class ModelNew(nn.Module):
    """
    An element-wise chain: scale, shift, GELU, tanh and a residual.
    """

    def __init__(self, scale, shift):
        super().__init__()
        self.scale = scale
        self.shift = shift

    def forward(self, x):
        y = x * self.scale + self.shift
        y = torch.nn.functional.gelu(y)
        return torch.tanh(y) + x
