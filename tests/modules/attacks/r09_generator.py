# attack: 9 forward is a generator: the work begins when the outputs are unpacked
# imitates: a lazy iterable in the place of a tuple of outputs (seen: ours)
# problem: moments
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        mean = x.mean(dim=1, keepdim=True)
        variance = x.var(dim=1, keepdim=True, unbiased=False)
        yield (x - mean) / torch.sqrt(variance + self.eps)
        yield torch.cat((mean, variance), dim=1)
