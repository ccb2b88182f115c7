# answer: waits in forward for a compilation in the background that nobody has begun
# expect: timeout
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gain = nn.Parameter(torch.randn(features))
        self.ready = False

    def forward(self, x):
        while not self.ready:
            time.sleep(0.05)
        return F.silu(self.norm(x) * self.gain)
