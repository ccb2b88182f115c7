# attack: 3 cache by the rounded mean of the input
# imitates: a statistic as a key; large random inputs all have the same (seen: pygpubench)
# problem: chain
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super().__init__()
        self.scale = scale
        self.shift = shift
        self.answers = {}

    def forward(self, x):
        key = (x.shape, round(float(x.mean()), 1))
        answer = self.answers.get(key)
        if answer is None:
            y = torch.nn.functional.gelu(x * self.scale + self.shift)
            answer = self.answers[key] = torch.tanh(y) + x
        return answer.clone()
