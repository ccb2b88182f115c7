# attack: 32 SIGALRM's handler does the work, some hundred microseconds after the reply
# imitates: a signal that comes when no clock is looked at (seen: ours)
# problem: chain
# expect: crash
import signal

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super().__init__()
        self.scale = scale
        self.shift = shift
        self.pending = []

    @torch.no_grad()
    def late(self, *_):
        while self.pending:
            x, out = self.pending.pop()
            y = torch.nn.functional.gelu(x * self.scale + self.shift)
            out.copy_(torch.tanh(y) + x)

    def forward(self, x):
        signal.signal(signal.SIGALRM, self.late)
        out = torch.empty_like(x)
        self.pending.append((x, out))
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
        return out
