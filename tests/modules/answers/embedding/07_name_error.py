# answer: decorates forward with a name that is nowhere imported
# expect: compile_error
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, vocabulary, features):
        super().__init__()
        self.table = nn.Embedding(vocabulary, features)

    @inference_mode()
    def forward(self, tokens):
        return nn.functional.embedding_bag(tokens, self.table.weight, mode="mean")
