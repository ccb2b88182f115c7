# answer: divides the sum over space by the output's area for a kernel of three, whatever the kernel is
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)

    def forward(self, x):
        y = torch.relu(self.conv(x)).sum(dim=(2, 3))
        return y / ((x.shape[2] - 2) * (x.shape[3] - 2))
