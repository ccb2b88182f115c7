# honest: a scripted function, and class attributes for constants
# problem: chain
import torch
import torch.nn as nn
import torch.nn.functional as F


@torch.jit.script
def fused(x: torch.Tensor, scale: float, shift: float) -> torch.Tensor:
    return torch.tanh(F.gelu(torch.add(x * scale, shift))) + x


class ModelNew(nn.Module):
    approximate = "none"
    __constants__ = ["scale", "shift"]

    def __init__(self, scale: float, shift: float) -> None:
        super().__init__()
        self.scale = float(scale)
        self.shift = float(shift)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return fused(x, self.scale, self.shift)
