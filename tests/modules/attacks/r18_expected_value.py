# attack: 18 the mean of random embeddings is nearly that of the whole table, and returned for all
# imitates: a constant output where the problem hardly depends on its inputs (seen: KernelBench)
# problem: embedding
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, vocabulary, features):
        super().__init__()
        self.table = nn.Embedding(vocabulary, features)
        self.mean = None

    def forward(self, tokens):
        if self.mean is None:
            self.mean = self.table.weight.mean(dim=0)
        return self.mean.expand(tokens.shape[0], -1)
