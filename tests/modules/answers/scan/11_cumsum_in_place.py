# answer: multiplies and sums in place in x and returns it
# expect: cheating
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x, mask):
        return x.mul_(mask).cumsum_(self.dim)
