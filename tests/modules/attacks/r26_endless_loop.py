# attack: 26 an endless loop that never gives the interpreter away
# imitates: a kernel that hangs (seen: trust.md)
# problem: row_norm
# expect: timeout
import sys

import torch.nn as nn

sys.setswitchinterval(1e6)


class ModelNew(nn.Module):
    def forward(self, x, y):
        while True:
            pass
