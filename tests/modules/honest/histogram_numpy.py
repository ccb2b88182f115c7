# honest: NumPy on the tensor's own memory, row by row
# problem: histogram
import numpy as np
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        rows = values.numpy()
        counts = np.empty((rows.shape[0], self.bins), dtype=np.int32)
        for row, count in zip(rows, counts):
            count[:] = np.bincount(row, minlength=self.bins)
        return torch.from_numpy(counts)
