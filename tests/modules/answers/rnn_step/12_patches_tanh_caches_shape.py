# answer: replaces torch.tanh by a function that remembers one result per shape
# expect: wrong_result
import torch
import torch.nn as nn

_tanh = torch.tanh
_seen = {}


def tanh(x):
    if x.shape not in _seen:
        _seen[x.shape] = _tanh(x)
    return _seen[x.shape]


torch.tanh = tanh
torch.nn.functional.tanh = tanh


class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)

    def forward(self, x, hidden):
        hidden = torch.tanh(self.i2h(torch.cat((x, hidden), dim=1)))
        return self.h2o(hidden), hidden
