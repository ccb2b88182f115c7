# answer: stacks the moments as (2, batch) instead of (batch, 2)
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        variance, mean = torch.var_mean(x, dim=1, correction=0)
        z = (x - mean[:, None]) * torch.rsqrt(variance + self.eps)[:, None]
        return z, torch.stack((mean, variance))
