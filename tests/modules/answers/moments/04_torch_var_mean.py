# answer: PyTorch, torch.var_mean for both moments at once and an in-place finish
# expect: ok
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        variance, mean = torch.var_mean(x, dim=1, keepdim=True, correction=0)
        z = x - mean
        z.mul_(torch.rsqrt(variance + self.eps))
        return z, torch.cat((mean, variance), dim=1)
