# answer: PyTorch, a loop over the bag's positions that adds the rows up; no tensor of three dimensions
# expect: ok
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, vocabulary, features):
        super().__init__()
        self.table = nn.Embedding(vocabulary, features)

    def forward(self, tokens):
        total = self.table(tokens[:, 0])
        for position in range(1, tokens.shape[1]):
            total += self.table(tokens[:, position])
        return total / tokens.shape[1]
