# answer: leaves the process with status 0 in forward, as if all had gone well
# expect: crash
import os

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super().__init__()
        self.scale = scale
        self.shift = shift

    def forward(self, x):
        y = x * self.scale + self.shift
        print("max difference: 0.0, all close: True", flush=True)
        os._exit(0)
        return torch.tanh(torch.nn.functional.gelu(y)) + x
