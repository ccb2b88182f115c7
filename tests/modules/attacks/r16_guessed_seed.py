# attack: 16 draws the inputs itself, for the seeds that are usual, and keeps their answers
# imitates: fixed seeds (42) and inputs that are known beforehand (seen: KernelBench)
# problem: row_norm
# expect: wrong_result
import torch
import torch.nn as nn

SEEDS = (0, 1, 42, 123, 1234, 1337, 2024)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.answers = {}

    def prepare(self, shape):
        for seed in SEEDS:
            torch.manual_seed(seed)
            x, y = torch.randn(shape), torch.rand(shape)
            answer = torch.sqrt(((x - y) ** 2).sum(dim=1))
            self.answers[tuple(shape), float(x[0, 0])] = answer

    def forward(self, x, y):
        if not self.answers:
            self.prepare(x.shape)
        return self.answers.get((tuple(x.shape), float(x[0, 0])), torch.zeros(x.shape[0]))
