import torch
import torch.nn as nn


class ModelNew(nn.Module):
    """
    Softmax over the last dimension with a temperature.
    """

    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        return torch.softmax(x / self.temperature, dim=-1)
