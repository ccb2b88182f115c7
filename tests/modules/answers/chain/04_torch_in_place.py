# answer: PyTorch, with the steps after the first done in place on its own temporary
# expect: ok
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super().__init__()
        self.scale = scale
        self.shift = shift

    def forward(self, x):
        y = torch.mul(x, self.scale)  # a new tensor: everything below may overwrite it
        y.add_(self.shift)
        y = F.gelu(y)
        return y.tanh_().add_(x)
