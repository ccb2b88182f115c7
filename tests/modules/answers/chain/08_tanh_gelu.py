# answer: the tanh approximation of GELU instead of erf; off by up to 5e-4
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super().__init__()
        self.scale = scale
        self.shift = shift

    def forward(self, x):
        y = torch.nn.functional.gelu(x * self.scale + self.shift, approximate="tanh")
        return torch.tanh(y) + x
