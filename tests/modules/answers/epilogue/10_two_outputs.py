# answer: returns the linear layer's output as well
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, factor):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.factor = factor

    def forward(self, x):
        x = self.linear(x)
        return torch.clamp(x * self.factor, -1.0, 1.0) + x, x
