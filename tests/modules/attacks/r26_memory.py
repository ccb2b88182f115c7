# attack: 26 takes and touches memory until there is none, or 4 GB are taken
# imitates: a memory hog (seen: trust.md)
# problem: layernorm
# expect: crash
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.hoard = []

    def forward(self, x):
        while len(self.hoard) < 32:
            self.hoard.append(torch.ones(1 << 25))
        raise MemoryError("there is more than 4 GB")
