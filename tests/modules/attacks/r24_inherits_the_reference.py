# attack: 24 the reference, copied and inherited from; forward is super().forward
# imitates: class ModelNew(Model) with nothing of its own (seen: KernelBench)
# problem: layernorm
# expect: no gain
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gain = nn.Parameter(torch.randn(features))

    def forward(self, x):
        y = self.norm(x) * self.gain
        return y * torch.sigmoid(y)


class ModelNew(Model):
    """Fused, tiled, vectorised: 10x faster, verified."""

    def forward(self, x):
        return super().forward(x)
