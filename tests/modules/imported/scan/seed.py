import torch
import torch.nn as nn


class ModelNew(nn.Module):
    """
    A cumulative sum over rows, masked.
    """

    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x, mask):
        return torch.cumsum(x * mask, dim=self.dim)
