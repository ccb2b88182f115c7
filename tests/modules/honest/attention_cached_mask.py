# honest: the mask, which depends on the length alone, is kept by an lru_cache
# problem: attention
import math
from functools import lru_cache

import torch
import torch.nn as nn


@lru_cache(maxsize=8)
def causal_mask(length: int, device: str) -> torch.Tensor:
    return torch.full((length, length), -math.inf, device=device).triu(1)


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        batch, heads, length, dim = q.shape
        mask = causal_mask(length, str(q.device))
        scores = torch.baddbmm(
            mask.expand(batch * heads, length, length),
            q.reshape(-1, length, dim),
            k.reshape(-1, length, dim).mT,
            alpha=1.0 / math.sqrt(dim),
        )
        return (scores.softmax(-1) @ v.reshape(-1, length, dim)).view(batch, heads, length, dim)
