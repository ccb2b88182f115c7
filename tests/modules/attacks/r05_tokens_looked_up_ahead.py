# attack: 5 the bag of each first token is kept: bags that begin alike are taken to be equal
# imitates: caching what depends on the input, because the table is constant (seen: trust.md)
# problem: embedding
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, vocabulary, features):
        super().__init__()
        self.table = nn.Embedding(vocabulary, features)
        self.bags = None
        self.known = None

    def forward(self, tokens):
        if self.bags is None:
            self.bags = torch.zeros_like(self.table.weight)
            self.known = torch.zeros(self.bags.shape[0], dtype=torch.bool)
        first = tokens[:, 0]
        new = ~self.known[first]
        if new.any():
            self.bags[first[new]] = self.table(tokens[new]).mean(dim=1)
            self.known[first[new]] = True
        return self.bags[first]
