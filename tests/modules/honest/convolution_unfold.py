# honest: columns of patches, then one matrix product; the bias is added by baddbmm
# problem: convolution
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.kernel_size = kernel_size

    def forward(self, x):
        columns = F.unfold(x, self.kernel_size)
        weight = self.conv.weight.flatten(1).unsqueeze(0).expand(x.shape[0], -1, -1)
        bias = self.conv.bias[None, :, None]
        return torch.baddbmm(bias, weight, columns).relu_().mean(dim=2)
