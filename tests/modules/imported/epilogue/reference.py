import torch
import torch.nn as nn


class Model(nn.Module):
    """
    A linear layer with an epilogue: scaling, hard clamp and a residual.
    """

    def __init__(self, in_features, out_features, factor):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.factor = factor

    def forward(self, x):
        x = self.linear(x)
        y = torch.clamp(x * self.factor, -1.0, 1.0)
        return y + x


batch_size = 128
in_features = 512
out_features = 512


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features, 2.0]
