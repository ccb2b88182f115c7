# answer: replaces time.perf_counter, time.time and torch.cuda.Event by frozen ones; right, and slow (a row at a time)
# expect: ok
import time

import torch
import torch.nn as nn


class FrozenEvent:
    def __init__(self, enable_timing=False, **kwargs):
        pass

    def record(self, stream=None):
        return None

    def elapsed_time(self, other):
        return 1e-6


time.perf_counter = time.time = time.monotonic = time.process_time = lambda: 0.0
time.perf_counter_ns = time.time_ns = time.monotonic_ns = lambda: 0
torch.cuda.Event = FrozenEvent


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, factor):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.factor = factor

    def forward(self, x):
        rows = [self.linear(row) for row in x]
        x = torch.stack(rows)
        return torch.clamp(x * self.factor, -1.0, 1.0) + x
