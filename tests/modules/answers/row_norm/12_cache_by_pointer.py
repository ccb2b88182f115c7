# answer: remembers its output by the address and shape of its inputs, and gives it again for new values there
# expect: wrong_result
import torch
import torch.nn as nn

_cache = {}


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, y):
        key = (x.data_ptr(), y.data_ptr(), x.shape)
        if key not in _cache:
            d = x - y
            _cache[key] = torch.sqrt((d * d).sum(dim=1))
        return _cache[key]
