# answer: PyTorch, sorts each row and looks up where each value ends; right, and slow
# expect: ok
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values):
        ordered = values.sort(dim=1).values
        edges = torch.arange(self.bins, dtype=values.dtype).expand(values.shape[0], -1).contiguous()
        ends = torch.searchsorted(ordered, edges, right=True, out_int32=True)
        return torch.diff(ends, dim=1, prepend=torch.zeros_like(ends[:, :1]))
