import torch
import torch.nn as nn


class ModelNew(nn.Module):
    """
    Two outputs of two shapes: each row's mean and variance, and the rows made standard.
    """

    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        mean = x.mean(dim=1, keepdim=True)
        variance = x.var(dim=1, keepdim=True, unbiased=False)
        moments = torch.cat((mean, variance), dim=1)
        return (x - mean) / torch.sqrt(variance + self.eps), moments
