# attack: 21 the last row is left out
# imitates: partial output within what a mean or a sample notices (seen: trust.md)
# problem: scan
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x, mask):
        out = torch.zeros_like(x)
        torch.cumsum(x[:-1] * mask[:-1], dim=self.dim, out=out[:-1])
        return out
