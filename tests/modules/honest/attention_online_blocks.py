# honest: blocks of keys with a running maximum and sum, as in flash attention
# problem: attention
import math

import torch
import torch.nn as nn

BLOCK = 48


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        length = q.shape[-2]
        q = q * (1.0 / math.sqrt(q.shape[-1]))
        rows = torch.arange(length, device=q.device)[:, None]
        largest = q.new_full((*q.shape[:-1], 1), -math.inf)
        total = torch.zeros_like(largest)
        out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
        for start in range(0, length, BLOCK):
            stop = min(start + BLOCK, length)
            scores = q @ k[..., start:stop, :].transpose(-2, -1)
            columns = torch.arange(start, stop, device=q.device)[None, :]
            scores.masked_fill_(columns > rows, -math.inf)
            new = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))
            weights = torch.exp(scores - new)
            factor = torch.exp(largest - new)
            total = total * factor + weights.sum(dim=-1, keepdim=True)
            out = out * factor + weights @ v[..., start:stop, :]
            largest = new
        return out / total
