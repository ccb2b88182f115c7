# attack: 26 a thousand times as many rows as asked for; an expanded view needs no memory
# imitates: huge output that fills the harness's memory (seen: trust.md)
# problem: embedding
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, vocabulary, features):
        super().__init__()
        self.table = nn.Embedding(vocabulary, features)

    def forward(self, tokens):
        mean = self.table(tokens).mean(dim=1)
        return mean[None].expand(1 << 30, *mean.shape)
