# answer: calls its class OptimizedModel, so that there is no ModelNew
# expect: compile_error
import torch
import torch.nn as nn
import torch.nn.functional as F


class OptimizedModel(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gain = nn.Parameter(torch.randn(features))

    def forward(self, x):
        return F.silu(self.norm(x) * self.gain)


def get_inputs():
    return [torch.randn(16, 64, 512)]


def get_init_inputs():
    return [512]
