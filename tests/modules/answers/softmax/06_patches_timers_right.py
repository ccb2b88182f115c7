# answer: slows every clock of the process and torch.cuda.Event down by a thousand, but computes the right thing
# expect: ok
import time

import torch
import torch.nn as nn

_perf_counter, _time, _monotonic = time.perf_counter, time.time, time.monotonic
_start = _perf_counter(), _time(), _monotonic()
time.perf_counter = lambda: _start[0] + (_perf_counter() - _start[0]) / 1000
time.time = lambda: _start[1] + (_time() - _start[1]) / 1000
time.monotonic = lambda: _start[2] + (_monotonic() - _start[2]) / 1000


class _Event:
    def __init__(self, *args, **kwargs):
        pass

    def record(self, *args):
        pass

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return 1e-3


torch.cuda.Event = _Event


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        return torch.softmax(x / self.temperature, dim=-1)
