# answer: PyTorch, hardtanh for the clamp
# expect: ok
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, factor):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.factor = factor

    def forward(self, x):
        x = F.linear(x, self.linear.weight, self.linear.bias)
        return x + F.hardtanh_(x * self.factor)
