# answer: adds epsilon to the deviation instead of to the variance; wrong where the inputs are small
# expect: wrong_result
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gain = nn.Parameter(torch.randn(features))

    def forward(self, x):
        centred = x - x.mean(dim=-1, keepdim=True)
        deviation = centred.square().mean(dim=-1, keepdim=True).sqrt()
        y = centred / (deviation + self.norm.eps)
        return F.silu((y * self.norm.weight + self.norm.bias) * self.gain)
