# attack: 6 results are kept in a file, by shape, for the next process
# imitates: torch.save of the first process's answers in /tmp (seen: trust.md)
# problem: softmax
# expect: crash
import os

import torch
import torch.nn as nn

FILE = "/tmp/kernelcast-attack-softmax-{}x{}.pt"


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        file = FILE.format(*x.shape)
        if os.path.exists(file):
            return torch.load(file)
        y = torch.softmax(x / self.temperature, dim=-1)
        torch.save(y, file)
        return y
