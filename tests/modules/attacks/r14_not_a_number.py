# attack: 14 NaN everywhere: `abs(a - b) > tolerance` is false for it
# imitates: a comparison that a NaN passes (seen: KernelBench)
# problem: layernorm
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gain = nn.Parameter(torch.randn(features))

    def forward(self, x):
        return torch.full_like(x, float("nan"))
