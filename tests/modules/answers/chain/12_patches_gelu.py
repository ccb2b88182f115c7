# answer: replaces torch.nn.functional.gelu (also for whoever else calls it) by the identity and skips it as well
# expect: wrong_result
import torch
import torch.nn as nn

torch.nn.functional.gelu = lambda y, approximate="none": y


class ModelNew(nn.Module):
    """With GELU gone from the reference, tanh(x * scale + shift) + x is all that is left to compute."""

    def __init__(self, scale, shift):
        super().__init__()
        self.scale = scale
        self.shift = shift

    def forward(self, x):
        return torch.tanh(torch.nn.functional.gelu(x * self.scale + self.shift)) + x
