# answer: a Hillis-Steele scan whose step is never doubled: loops for ever
# expect: timeout
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x, mask):
        y = x * mask
        step = 1
        while step < y.shape[self.dim]:
            shifted = torch.zeros_like(y)
            shifted[:, step:] = y[:, :-step]
            y = y + shifted
        return y
