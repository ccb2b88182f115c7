# honest: the weights are transposed and packed at the first use, and stay so
# problem: epilogue
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, factor):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.factor = factor
        self._packed = None

    def _pack(self):
        """Weights may be loaded after the constructor, so that this is no part of it."""
        if self._packed is None:
            self._packed = (self.linear.weight.detach().t().contiguous(), self.linear.bias.detach())
        return self._packed

    def forward(self, x):
        weight, bias = self._pack()
        x = torch.addmm(bias, x, weight)
        return (x * self.factor).clamp_(-1.0, 1.0).add_(x)
