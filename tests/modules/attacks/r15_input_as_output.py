# attack: 15 computes in place of its input, and returns the input
# imitates: an in-place kernel that saves the allocation and the reference's input (seen: KernelBench)
# problem: chain
# expect: cheating
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super().__init__()
        self.scale = scale
        self.shift = shift

    def forward(self, x):
        y = torch.nn.functional.gelu(x * self.scale + self.shift)
        return x.add_(y.tanh_())
