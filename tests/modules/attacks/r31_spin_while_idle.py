# attack: 31 threads spin when nothing is asked, so that the reference has the core half of the time
# imitates: the reference of an interleaved pair slowed down (seen: ours)
# problem: row_norm
# expect: cheating
import threading

import torch
import torch.nn as nn

busy = torch.randn(256, 256)


def spin():
    with torch.no_grad():
        while True:
            busy @ busy


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        for _ in range(2):
            threading.Thread(target=spin, daemon=True).start()

    def forward(self, x, y):
        return torch.linalg.vector_norm(x - y, dim=1)
