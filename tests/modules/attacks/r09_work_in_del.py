# attack: 9 the answer is filled in by __del__ of an object that goes with the next call
# imitates: work in a finaliser, which no clock around the call sees (seen: ours)
# problem: chain
# expect: wrong_result
import torch
import torch.nn as nn


class Late:
    def __init__(self, x, out, scale, shift):
        self.job = x, out, scale, shift

    @torch.no_grad()
    def __del__(self):
        x, out, scale, shift = self.job
        out.copy_(torch.tanh(nn.functional.gelu(x * scale + shift)) + x)


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super().__init__()
        self.scale = scale
        self.shift = shift
        self.late = None

    def forward(self, x):
        out = torch.empty_like(x)
        self.late = Late(x, out, self.scale, self.shift)
        return out
