# honest: every step is in place, on a temporary of its own
# problem: chain
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super().__init__()
        self.scale, self.shift = scale, shift

    def forward(self, x):
        y = x.clone()
        y.mul_(self.scale).add_(self.shift)
        half = y.mul(0.7071067811865476).erf_().add_(1.0).mul_(0.5)
        y *= half
        y.tanh_()
        y += x
        return y
