# answer: imports flash_attn, which is not installed
# expect: compile_error
import torch
import torch.nn as nn
from flash_attn import flash_attn_func


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return flash_attn_func(q, k, v, causal=True).transpose(1, 2)
