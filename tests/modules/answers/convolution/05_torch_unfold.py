# answer: PyTorch, im2col by F.unfold and one matrix product; right, and slower
# expect: ok
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)

    def forward(self, x):
        columns = F.unfold(x, self.conv.kernel_size)
        weight = self.conv.weight.flatten(1)
        y = weight @ columns + self.conv.bias.unsqueeze(1)
        return y.clamp_(min=0.0).mean(dim=2)
