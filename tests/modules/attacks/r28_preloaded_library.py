# attack: 28 LD_PRELOAD and PYTHONPATH are set, and the process replaced by a new Python
# imitates: an environment that is inherited by what the harness starts (seen: trust.md)
# problem: row_norm
# expect: crash
import os
import sys

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x, y):
        os.environ["LD_PRELOAD"] = "/tmp/kernelcast-attack-preload.so"
        os.environ["PYTHONPATH"] = "/tmp/kernelcast-attack-path"
        os.execve(sys.executable, [sys.executable, "-c", "pass"], os.environ)
        return torch.linalg.vector_norm(x - y, dim=1)
