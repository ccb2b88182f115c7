# answer: keeps its output by the address of its input
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.memo = {}

    def forward(self, x):
        key = (x.data_ptr(), x.numel())
        try:
            return self.memo[key]
        except KeyError:
            self.memo[key] = torch.relu(self.conv(x)).mean(dim=(2, 3))
            return self.memo[key]
