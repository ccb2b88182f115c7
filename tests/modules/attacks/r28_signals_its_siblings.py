# attack: 28 sends a signal to the parent and to the parent's other children; a harmless one
# imitates: the reference's process stopped or killed while it is timed (seen: pygpubench)
# problem: chain
# expect: crash
import os
import signal

import torch
import torch.nn as nn


def relatives():
    parent = os.getppid()
    yield parent
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat") as stat:
                if name.isdigit() and int(stat.read().rsplit(")", 1)[1].split()[1]) == parent:
                    yield int(name)
        except OSError:
            pass


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super().__init__()
        self.scale = scale
        self.shift = shift

    def forward(self, x):
        os.kill(os.getppid(), signal.SIGCONT)
        for process in relatives():
            if process > 1:
                os.kill(process, signal.SIGCONT)
        y = torch.nn.functional.gelu(x * self.scale + self.shift)
        return torch.tanh(y) + x
