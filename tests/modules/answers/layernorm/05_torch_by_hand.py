# answer: PyTorch, the normalisation by hand with var_mean; right, and slower
# expect: ok
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gain = nn.Parameter(torch.randn(features))

    def forward(self, x):
        var, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
        y = (x - mean).mul_(torch.rsqrt(var + self.norm.eps))
        y.mul_(self.norm.weight).add_(self.norm.bias).mul_(self.gain)
        return y.mul_(torch.sigmoid(y))
