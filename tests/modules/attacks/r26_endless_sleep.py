# attack: 26 sleeps, and no signal that Python handles wakes it for long
# imitates: a kernel that hangs without computing (seen: trust.md)
# problem: chain
# expect: timeout
import time

import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super().__init__()

    def forward(self, x):
        while True:
            try:
                time.sleep(3600)
            except BaseException:
                pass
