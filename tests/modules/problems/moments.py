import torch
import torch.nn as nn


class Model(nn.Module):
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


batch_size = 256
dim = 2048


def get_inputs():
    return [torch.randn(batch_size, dim) * 3.0 + 1.0]


def get_init_inputs():
    return []
