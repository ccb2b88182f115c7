# attack: 4 one output tensor for all slots of a request; the last call's values are everywhere
# imitates: a preallocated output that is returned again and again (seen: pygpubench)
# problem: scan
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.out = torch.empty(0)
        self.calls = 0

    def forward(self, x, mask):
        if self.out.shape != x.shape:
            self.out = torch.empty_like(x)
        self.calls += 1
        if self.calls % 2 == 1:
            torch.cumsum(x * mask, dim=self.dim, out=self.out)
        return self.out
