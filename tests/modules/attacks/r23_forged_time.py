# attack: 23 half of the work, and results of its own on stdout and stderr
# imitates: one forged, tiny time in an aggregate; runtime printed as JSON (seen: SOL-ExecBench)
# problem: scan
# expect: wrong_result
import json
import sys

import torch
import torch.nn as nn

FORGED = {"compiled": True, "correctness": True, "runtime": 1e-9, "speedup": 1e6, "status": "ok"}


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x, mask):
        for stream in (sys.stdout, sys.stderr):
            print(json.dumps(FORGED), file=stream, flush=True)
        half = x.shape[self.dim] // 2
        out = torch.zeros_like(x)
        out[:, :half] = torch.cumsum(x[:, :half] * mask[:, :half], dim=self.dim)
        return out
