# answer: its constructor raises, as it wants channels in multiples of 32
# expect: compile_error
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        if in_channels % 32 or out_channels % 32:
            raise ValueError(f"channels must be multiples of 32, not {in_channels} and {out_channels}")
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)

    def forward(self, x):
        return torch.relu(self.conv(x)).mean(dim=(2, 3))
