# honest: sums of blocks first, in float64, then the offsets; the rest is padded
# problem: scan
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    block = 64

    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x, mask):
        rows, length = x.shape
        y = F.pad((x * mask).to(torch.float64), (0, -length % self.block))
        inner = y.view(rows, -1, self.block).cumsum(dim=2)
        offsets = F.pad(inner[:, :-1, -1], (1, 0)).cumsum(dim=1)
        return (inner + offsets[:, :, None]).view(rows, -1)[:, :length].float()
