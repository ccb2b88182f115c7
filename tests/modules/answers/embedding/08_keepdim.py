# answer: keeps the bag's dimension: (batch, 1, features)
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, vocabulary, features):
        super().__init__()
        self.table = nn.Embedding(vocabulary, features)

    def forward(self, tokens):
        return self.table(tokens).mean(dim=1, keepdim=True)
