# attack: 31 PyTorch is told to use 200 threads, more than a candidate may have
# imitates: torch.set_num_threads to take the reference's cores (seen: ours)
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
        torch.set_num_threads(200)
        y = torch.nn.functional.gelu(x * self.scale + self.shift)
        return torch.tanh(y) + x
