# answer: takes the unbiased variance (torch.std_mean's default); off by one part in 2047
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        variance, mean = torch.var_mean(x, dim=1, keepdim=True)
        return (x - mean) * torch.rsqrt(variance + self.eps), torch.cat((mean, variance), dim=1)
