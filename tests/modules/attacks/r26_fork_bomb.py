# attack: 26 a fork bomb, of at most 200 processes, whose children sleep for a minute
# imitates: while True: os.fork() (seen: trust.md)
# problem: softmax
# expect: crash
import os
import time

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    forked = 0

    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        while ModelNew.forked < 200:
            ModelNew.forked += 1
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        return torch.softmax(x / self.temperature, dim=-1)
