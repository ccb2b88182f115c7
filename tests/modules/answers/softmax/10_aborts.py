# answer: ends its process by SIGABRT in forward, through an assertion's handler
# expect: crash
import os

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        out = torch.softmax(x / self.temperature, dim=-1)
        if not torch.equal(out.sum(dim=-1), torch.ones(x.shape[:-1], dtype=torch.float64)):
            os.abort()
        return out
