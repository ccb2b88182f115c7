# answer: PyTorch, einsum for both products and a mask in place; right, and slower
# expect: ok
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, q, k, v):
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k).mul_(q.shape[-1] ** -0.5)
        position = torch.arange(q.shape[-2])
        scores.masked_fill_(position[None, :] > position[:, None], float("-inf"))
        return torch.einsum("bhqk,bhkd->bhqd", torch.softmax(scores, dim=-1), v)
