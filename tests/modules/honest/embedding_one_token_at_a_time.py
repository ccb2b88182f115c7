# honest: another order of summation: one position after the other, in a closure
# problem: embedding
import torch
import torch.nn as nn


def adder(table):
    def add(total, tokens):
        return total.add_(table.index_select(0, tokens))

    return add


class ModelNew(nn.Module):
    def __init__(self, vocabulary, features):
        super().__init__()
        self.table = nn.Embedding(vocabulary, features)

    def forward(self, tokens):
        add = adder(self.table.weight)
        total = torch.zeros(tokens.shape[0], self.table.embedding_dim, device=tokens.device)
        for column in tokens.unbind(dim=1):
            total = add(total, column)
        return total / tokens.shape[1]
