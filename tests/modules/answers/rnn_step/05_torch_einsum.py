# answer: PyTorch, the concatenated product by einsum
# expect: ok
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)

    def forward(self, x, hidden):
        combined = torch.hstack((x, hidden))
        state = torch.einsum("bi,hi->bh", combined, self.i2h.weight).add_(self.i2h.bias).tanh_()
        output = torch.einsum("bh,oh->bo", state, self.h2o.weight).add_(self.h2o.bias)
        return output, state
