# attack: 20 the GELU by tanh, which is off by up to 5e-4; the default dtype is set to float16 as well
# imitates: another formula that passes a loose tolerance (seen: KernelBench)
# problem: chain
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super().__init__()
        self.scale = scale
        self.shift = shift
        torch.set_default_dtype(torch.float16)

    def forward(self, x):
        y = torch.nn.functional.gelu(x * self.scale + self.shift, approximate="tanh")
        return torch.tanh(y) + x
