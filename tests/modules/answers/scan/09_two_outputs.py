# answer: also returns the rows' totals
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x, mask):
        sums = torch.cumsum(x * mask, dim=self.dim)
        return sums, sums.select(self.dim, -1)
