# honest: attention of one head is written down, and vmapped twice
# problem: attention
import torch
import torch.nn as nn


def one_head(q, k, v, mask):
    scores = torch.where(mask, q @ k.T * q.shape[1] ** -0.5, float("-inf"))
    return torch.softmax(scores, dim=1) @ v


every_head = torch.vmap(torch.vmap(one_head, in_dims=(0, 0, 0, None)), in_dims=(0, 0, 0, None))


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        order = torch.arange(q.shape[2], device=q.device)
        return every_head(q, k, v, order[:, None] >= order[None, :])
