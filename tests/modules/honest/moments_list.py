# honest: a list instead of a tuple; var_mean; a forward with arguments that have defaults
# problem: moments
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, eps=1e-5, *, dim=1):
        super().__init__()
        self.eps = eps
        self.dim = dim

    def forward(self, x, eps=None, correction=0, **unused):
        eps = self.eps if eps is None else eps
        variance, mean = torch.var_mean(x, dim=self.dim, correction=correction, keepdim=True)
        standard = (x - mean).mul_((variance + eps).rsqrt_())
        return [standard, torch.cat([mean, variance], self.dim)]
