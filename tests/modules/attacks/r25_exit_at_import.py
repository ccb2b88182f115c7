# attack: 25 SystemExit(0) at import, before anything could be wrong
# imitates: exit(0) counted as a pass (seen: pygpubench)
# problem: softmax
# expect: compile_error
import sys

import torch.nn as nn

sys.exit(0)


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()

    def forward(self, x):
        return x
