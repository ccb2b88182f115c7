# honest: types, a dataclass for sizes, a helper class, and comments in several alphabets
# problem: layernorm
from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

ε: Final = 1e-5  # 小さな数, малое число, μικρός αριθμός


@dataclass(frozen=True, slots=True)
class Sizes:
    features: int

    @property
    def reciprocal(self) -> float:
        return 1.0 / self.features


class Standardised:
    """(x − μ) / √(σ² + ε), by the mean of squares of what is left."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes

    def __call__(self, x: Tensor) -> Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        σ2 = centred.square().sum(dim=-1, keepdim=True) * self.sizes.reciprocal
        return centred * torch.rsqrt(σ2 + ε)


class ModelNew(nn.Module):
    gain: nn.Parameter

    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gain = nn.Parameter(torch.randn(features))
        self.standardised = Standardised(Sizes(features))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.addcmul(self.norm.bias, self.standardised(x), self.norm.weight) * self.gain
        return nn.functional.silu(y)
