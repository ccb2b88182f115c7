# attack: 2 cache by the version counter and the layout of the input
# imitates: "the tensor was not written since" by tensor._version (seen: KernelBench)
# problem: layernorm
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gain = nn.Parameter(torch.randn(features))
        self.seen = None
        self.answer = None

    def forward(self, x):
        seen = (x._version, x.shape, x.dtype, self.gain._version)
        if seen != self.seen:
            y = self.norm(x) * self.gain
            self.answer = y * torch.sigmoid(y)
            self.seen = seen
        return self.answer.clone()
