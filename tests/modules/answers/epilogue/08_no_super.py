# answer: assigns its layer before it calls super().__init__(), which raises in the constructor
# expect: compile_error
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, factor):
        self.linear = nn.Linear(in_features, out_features)
        self.factor = factor
        super().__init__()

    def forward(self, x):
        x = self.linear(x)
        return torch.clamp(x * self.factor, -1.0, 1.0).add_(x)
