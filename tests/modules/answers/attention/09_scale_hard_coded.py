# answer: scales by 1/8, which is right only for heads of 64
# expect: wrong_result
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    SCALE = 0.125  # 1 / sqrt(64)

    def __init__(self):
        super().__init__()

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.SCALE)
