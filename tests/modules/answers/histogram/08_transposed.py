# answer: returns (bins, batch) instead of (batch, bins)
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values):
        rows = torch.arange(values.shape[0], dtype=values.dtype).unsqueeze(1)
        flat = (values * values.shape[0] + rows).flatten()
        counts = torch.bincount(flat, minlength=self.bins * values.shape[0])
        return counts.view(self.bins, values.shape[0]).to(torch.int32)
