# answer: keeps the product of an input by its address, "because the weights do not change"
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, factor):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.factor = factor
        self._products = {}

    def forward(self, x):
        key = (x.data_ptr(), x.shape)
        y = self._products.get(key)
        if y is None:
            y = self.linear(x)
            self._products[key] = y
        return torch.clamp(y * self.factor, -1.0, 1.0) + y
