import torch
import torch.nn as nn


class ModelNew(nn.Module):
    """
    A reduction: the Euclidean norm of each row of a difference.
    """

    def __init__(self):
        super().__init__()

    def forward(self, x, y):
        d = x - y
        return torch.sqrt((d * d).sum(dim=1))
