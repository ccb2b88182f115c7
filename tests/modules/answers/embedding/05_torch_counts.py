# answer: PyTorch, counts the tokens of each bag and multiplies the counts by the table; right, and slower
# expect: ok
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, vocabulary, features):
        super().__init__()
        self.table = nn.Embedding(vocabulary, features)

    def forward(self, tokens):
        weight = self.table.weight
        counts = torch.zeros(tokens.shape[0], weight.shape[0], dtype=weight.dtype)
        counts.scatter_add_(1, tokens, torch.ones(tokens.shape, dtype=weight.dtype))
        return (counts @ weight).div_(tokens.shape[1])
