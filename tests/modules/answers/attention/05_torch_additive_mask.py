# answer: PyTorch, a mask of -inf kept per length and added by baddbmm together with the scale
# expect: ok
import math

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.masks = {}  # by length: it depends on nothing else

    def forward(self, q, k, v):
        length, dim = q.shape[-2:]
        if length not in self.masks:
            self.masks[length] = torch.full((length, length), float("-inf"), dtype=q.dtype).triu_(1)
        flat_q, flat_k, flat_v = (t.reshape(-1, length, dim) for t in (q, k, v))
        scores = torch.baddbmm(self.masks[length], flat_q, flat_k.transpose(1, 2), alpha=1.0 / math.sqrt(dim))
        return torch.bmm(scores.softmax(dim=-1), flat_v).view(q.shape)
