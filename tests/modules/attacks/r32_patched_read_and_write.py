# attack: 32 os.write and os.read are replaced: the work is done when the reply was written
# imitates: the service's own calls as places where work is free (seen: ours)
# problem: epilogue
# expect: wrong_result
import os

import torch
import torch.nn as nn

pending = []
real_write, real_read = os.write, os.read


@torch.no_grad()
def work():
    while pending:
        model, x, out = pending.pop()
        y = model.linear(x)
        out.copy_(torch.clamp(y * model.factor, -1.0, 1.0) + y)


def write(fd, data):
    written = real_write(fd, data)
    work()
    return written


def read(fd, size):
    work()
    return real_read(fd, size)


os.write, os.read = write, read


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, factor):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.factor = factor

    def forward(self, x):
        out = torch.zeros(x.shape[0], self.linear.out_features)
        pending.append((self, x, out))
        return out
