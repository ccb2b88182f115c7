# answer: checks in forward that the tokens are int32, which they are not, and raises
# expect: crash
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, vocabulary, features):
        super().__init__()
        self.table = nn.Embedding(vocabulary, features)

    def forward(self, tokens):
        if tokens.dtype != torch.int32:
            raise TypeError(f"expected int32 tokens, got {tokens.dtype}")
        return F.embedding_bag(tokens, self.table.weight, mode="mean")
