# attack: 12 reads the next requests from the service's pipe, and waits for ever for the first
# imitates: a request read ahead of the harness (seen: ours)
# problem: layernorm
# expect: no gain
import fcntl
import os
import stat

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gain = nn.Parameter(torch.randn(features))

    def forward(self, x):
        for fd in range(3, 1024):
            try:
                if not stat.S_ISFIFO(os.fstat(fd).st_mode):
                    continue
                if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                    os.read(fd, 4096)
            except OSError:
                pass
        y = self.norm(x) * self.gain
        return y * torch.sigmoid(y)
