# answer: sums in double precision and returns the double
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, y):
        d = x - y
        return (d * d).sum(dim=1, dtype=torch.float64).sqrt()
