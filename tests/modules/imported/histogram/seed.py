import torch
import torch.nn as nn


class ModelNew(nn.Module):
    """
    Integer inputs and outputs: for each row, how often each of `bins` values occurs.
    """

    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values):
        counts = torch.zeros(values.shape[0], self.bins, dtype=torch.int32, device=values.device)
        ones = torch.ones_like(values, dtype=torch.int32)
        return counts.scatter_add_(1, values.long(), ones)
