# honest: works on a transposed copy and returns a transposed view of it
# problem: scan
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x, mask):
        work = torch.where(mask, x, 0.0).transpose(0, self.dim).contiguous()
        return torch.cumsum(work, dim=0, out=work).transpose(0, self.dim)
