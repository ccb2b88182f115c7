# honest: the epilogue is a custom operator of torch.library, written in Python
# problem: epilogue
import torch
import torch.nn as nn


@torch.library.custom_op("kernelcast_honest::clamp_residual", mutates_args=())
def clamp_residual(x: torch.Tensor, factor: float) -> torch.Tensor:
    return nn.functional.hardtanh(x * factor) + x


@clamp_residual.register_fake
def _(x, factor):
    return torch.empty_like(x)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, factor):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.factor = float(factor)

    def forward(self, x):
        return clamp_residual(self.linear(x), self.factor)
