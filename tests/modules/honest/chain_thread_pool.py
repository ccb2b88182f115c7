# honest: two threads of a ThreadPoolExecutor take one half each; both are waited for
# problem: chain
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super().__init__()
        self.scale = scale
        self.shift = shift
        self.pool = ThreadPoolExecutor(max_workers=2)

    def part(self, x, out):
        # Whether gradients are wanted is a setting of each thread.
        with torch.no_grad():
            torch.add(torch.tanh(F.gelu(x * self.scale + self.shift)), x, out=out)

    def forward(self, x):
        out = torch.empty_like(x)
        middle = x.shape[0] // 2
        futures = [
            self.pool.submit(self.part, x[:middle], out[:middle]),
            self.pool.submit(self.part, x[middle:], out[middle:]),
        ]
        for future in futures:
            future.result()
        return out
