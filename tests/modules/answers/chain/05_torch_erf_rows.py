# answer: PyTorch, row block by row block so that the temporaries stay in the cache, GELU written with erf
# expect: ok
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    BLOCK = 32768

    def __init__(self, scale, shift):
        super().__init__()
        self.scale = scale
        self.shift = shift

    def forward(self, x):
        flat = x.reshape(-1)
        out = torch.empty_like(flat)
        for begin in range(0, flat.numel(), self.BLOCK):
            part = flat[begin:begin + self.BLOCK]
            y = part * self.scale
            y += self.shift
            e = torch.erf(y * 0.7071067811865476)
            e += 1.0
            y *= e
            y *= 0.5
            torch.add(y.tanh_(), part, out=out[begin:begin + self.BLOCK])
        return out.reshape(x.shape)
