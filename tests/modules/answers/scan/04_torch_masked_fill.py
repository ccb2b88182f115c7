# answer: PyTorch, masked_fill and a cumulative sum in place on the copy
# expect: ok
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x, mask):
        return x.masked_fill(~mask, 0.0).cumsum_(dim=self.dim)
