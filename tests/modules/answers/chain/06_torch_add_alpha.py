# answer: PyTorch, scale and shift in one torch.add with alpha
# expect: ok
import torch
import torch.nn as nn


def chain(x: torch.Tensor, scale: float, shift: float) -> torch.Tensor:
    y = torch.add(torch.full_like(x, shift), x, alpha=scale)
    return torch.tanh(torch.nn.functional.gelu(y)) + x


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super().__init__()
        self.scale = float(scale)
        self.shift = float(shift)

    def forward(self, x):
        return chain(x, self.scale, self.shift)
