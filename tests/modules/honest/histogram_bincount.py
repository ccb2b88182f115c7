# honest: one bincount for all rows, each shifted by its own offset; int64, cast at the end
# problem: histogram
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values):
        rows = values.shape[0]
        shifted = values + torch.arange(rows, device=values.device).unsqueeze(1) * self.bins
        counts = torch.bincount(shifted.flatten(), minlength=rows * self.bins)
        return counts.view(rows, self.bins).to(torch.int32)
