# attack: 19 no maximum is subtracted, which is only seen for large inputs
# imitates: stability given up where randn() does not need it (seen: KernelBench)
# problem: attention
# expect: wrong_result
import math

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        scores = q @ k.transpose(-2, -1)
        weights = scores.mul_(1 / math.sqrt(q.shape[-1])).exp_().tril_()
        return (weights @ v) / weights.sum(dim=-1, keepdim=True)
