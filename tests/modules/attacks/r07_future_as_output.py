# attack: 7 a future is returned, whose result is computed by a pool after the reply
# imitates: a handle of asynchronous work in the place of a tensor (seen: KernelBench)
# problem: layernorm
# expect: wrong_result
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn


class Handle:
    def __init__(self, future, shape):
        self._future, self.shape, self.dtype, self.device = future, shape, torch.float32, "cpu"

    def __getattr__(self, name):
        return getattr(self._future.result(), name)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gain = nn.Parameter(torch.randn(features))
        self.pool = ThreadPoolExecutor(1)

    @torch.no_grad()
    def work(self, x):
        y = self.norm(x) * self.gain
        return y * torch.sigmoid(y)

    def forward(self, x):
        return Handle(self.pool.submit(self.work, x), x.shape)
