# honest: set_num_threads(1) and the logarithm of the sum of exponentials
# problem: softmax
import os

import torch
import torch.nn as nn

os.environ.setdefault("OMP_PROC_BIND", "false")
torch.set_num_threads(1)
torch.backends.cuda.matmul.allow_tf32 = False


class ModelNew(nn.Module):
    def __init__(self, temperature, *arguments, **options):
        super().__init__()
        self.register_buffer("inverse", torch.tensor(1.0 / temperature), persistent=False)

    def forward(self, x):
        scaled = x * self.inverse
        return torch.exp(scaled - torch.logsumexp(scaled, dim=-1, keepdim=True))
