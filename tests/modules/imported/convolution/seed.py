import torch
import torch.nn as nn


class ModelNew(nn.Module):
    """
    A small convolution with bias, ReLU and a mean over space.
    """

    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)

    def forward(self, x):
        x = torch.relu(self.conv(x))
        return x.mean(dim=(2, 3))
