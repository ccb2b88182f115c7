# answer: leaves the maximum out, so that exp overflows to inf / inf for large inputs; right for small ones
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        # Inputs are standard normal: no overflow is possible, the maximum is not needed.
        e = torch.exp(x * (1.0 / self.temperature))
        return e / e.sum(dim=-1, keepdim=True)
