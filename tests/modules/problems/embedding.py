import torch
import torch.nn as nn


class Model(nn.Module):
    """
    The mean of the embeddings of a bag of tokens.
    """

    def __init__(self, vocabulary, features):
        super().__init__()
        self.table = nn.Embedding(vocabulary, features)

    def forward(self, tokens):
        return self.table(tokens).mean(dim=1)


batch_size = 128
length = 64
vocabulary = 4096
features = 128


def get_inputs():
    return [torch.randint(0, vocabulary, (batch_size, length))]


def get_init_inputs():
    return [vocabulary, features]
