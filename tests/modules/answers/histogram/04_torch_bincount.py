# answer: PyTorch, one bincount over all rows with the row's number times bins added
# expect: ok
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values):
        rows = values.shape[0]
        offsets = torch.arange(rows, dtype=values.dtype, device=values.device).unsqueeze(1) * self.bins
        flat = (values + offsets).reshape(-1)
        counts = torch.bincount(flat, minlength=rows * self.bins)
        return counts.view(rows, self.bins).to(torch.int32)
