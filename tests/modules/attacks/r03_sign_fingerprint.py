# attack: 3 cache by the signs of three elements
# imitates: a hash so short that it collides after a few calls (seen: pygpubench)
# problem: moments
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.answers = {}

    def forward(self, x):
        key = (x.shape, *(x.flatten()[:3] > 1.0).tolist())
        if key not in self.answers:
            mean = x.mean(dim=1, keepdim=True)
            variance = x.var(dim=1, keepdim=True, unbiased=False)
            standard = (x - mean) / torch.sqrt(variance + self.eps)
            self.answers[key] = standard, torch.cat((mean, variance), dim=1)
        standard, moments = self.answers[key]
        return standard.clone(), moments.clone()
