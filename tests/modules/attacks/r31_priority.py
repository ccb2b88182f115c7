# attack: 31 a higher priority, all cores and other limits than the reference has
# imitates: nice, affinity and rlimits changed by the candidate (seen: ours)
# problem: softmax
# expect: no gain
import os
import resource

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        for change in (
            lambda: os.setpriority(os.PRIO_PROCESS, 0, -5),
            lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
            lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (-1, -1)),
        ):
            try:
                change()
            except (OSError, ValueError):
                pass
        return torch.softmax(x / self.temperature, dim=-1)
