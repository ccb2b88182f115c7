# honest: the library's embedding_bag, on the table of an nn.Embedding
# problem: embedding
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, vocabulary, features):
        super().__init__()
        self.table = nn.Embedding(vocabulary, features)

    def forward(self, tokens):
        return F.embedding_bag(tokens, self.table.weight, mode="mean")
