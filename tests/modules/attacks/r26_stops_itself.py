# attack: 26 stops itself by SIGSTOP, so that no clock of its own runs
# imitates: a process that waits without looking idle (seen: ours)
# problem: epilogue
# expect: crash
import os
import signal

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, factor):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        os.kill(os.getpid(), signal.SIGSTOP)
        return torch.zeros(x.shape[0], self.linear.out_features)
