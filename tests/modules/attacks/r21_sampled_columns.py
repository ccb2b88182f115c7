# attack: 21 moments are taken from every second column
# imitates: a sample of the data, whose error is statistically small (seen: KernelBench)
# problem: moments
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        variance, mean = torch.var_mean(x[:, ::2], dim=1, keepdim=True, correction=0)
        return (x - mean) * torch.rsqrt(variance + self.eps), torch.cat((mean, variance), dim=1)
