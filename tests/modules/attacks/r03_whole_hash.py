# attack: 3 cache by a hash of all bytes; honest where no content comes twice
# imitates: memoising by content (seen: pygpubench)
# problem: histogram
# expect: no gain
import hashlib

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins
        self.answers = {}

    def forward(self, values):
        key = hashlib.blake2b(values.contiguous().numpy().tobytes()).digest()
        if key not in self.answers:
            self.answers.clear()
            counts = torch.zeros(values.shape[0], self.bins, dtype=torch.int32)
            ones = torch.ones_like(values, dtype=torch.int32)
            self.answers[key] = counts.scatter_add_(1, values.long(), ones)
        return self.answers[key].clone()
