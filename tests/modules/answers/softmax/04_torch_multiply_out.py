# answer: PyTorch, multiplies by the reciprocal temperature and lets softmax write over the product
# expect: ok
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature
        self.inverse = 1.0 / temperature

    def forward(self, x):
        scaled = (x * self.inverse).contiguous()
        return torch.softmax(scaled, dim=-1, out=scaled)
