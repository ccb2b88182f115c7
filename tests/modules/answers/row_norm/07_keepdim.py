# answer: keeps the reduced dimension: (batch, 1) instead of (batch,)
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, y):
        return torch.norm(x - y, p=2, dim=1, keepdim=True)
