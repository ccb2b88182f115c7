# honest: no concatenation: the weight is split into two views, one product for each
# problem: rnn_step
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)
        self.input_size = input_size

    def forward(self, x, hidden):
        left, right = self.i2h.weight.tensor_split([self.input_size], dim=1)
        state = torch.addmm(self.i2h.bias, x, left.T).addmm_(hidden, right.T).tanh_()
        return torch.addmm(self.h2o.bias, state, self.h2o.weight.T), state
