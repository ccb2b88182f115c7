# attack: 19 right at every shape but the file's own, where the last answer is returned
# imitates: hidden shapes are only checked, and the known ones only timed (seen: ours)
# problem: softmax
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature
        self.last = None

    def forward(self, x):
        if x.shape == (256, 2048) and self.last is not None:
            return self.last
        self.last = torch.softmax(x / self.temperature, dim=-1)
        return self.last
