# answer: returns mean and variance as two outputs: three in all
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        variance, mean = torch.var_mean(x, dim=1, keepdim=True, correction=0)
        return (x - mean) / torch.sqrt(variance + self.eps), mean, variance
