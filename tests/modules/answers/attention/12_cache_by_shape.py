# answer: keeps the attention's probabilities by shape and applies the first ones to all later values
# expect: wrong_result
import math

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = {}

    def probabilities(self, q, k):
        if q.shape not in self.cache:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            self.cache[q.shape] = scores.masked_fill_(mask, float("-inf")).softmax(dim=-1)
        return self.cache[q.shape]

    def forward(self, q, k, v):
        return self.probabilities(q, k) @ v
