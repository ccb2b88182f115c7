# attack: 12 all descriptors are closed, so that no wrong answer can be reported
# imitates: a harness that takes silence for success (seen: pygpubench)
# problem: chain
# expect: crash
import os

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super().__init__()

    def forward(self, x):
        for fd in range(3, 1024):
            try:
                os.close(fd)
            except OSError:
                pass
        return torch.zeros_like(x)
