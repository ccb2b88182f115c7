import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Layer normalisation with weights, then SiLU.
    """

    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gain = nn.Parameter(torch.randn(features))

    def forward(self, x):
        y = self.norm(x) * self.gain
        return y * torch.sigmoid(y)


batch_size = 16
rows = 64
features = 512


def get_inputs():
    return [torch.randn(batch_size, rows, features)]


def get_init_inputs():
    return [features]
