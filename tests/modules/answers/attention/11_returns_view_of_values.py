# answer: returns a view of v without any attention: the right shape, dtype and first row
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, q, k, v):
        return v[:, :, :q.shape[-2]]
