# attack: 5 the product of the hidden state is computed once, as if the state were a weight
# imitates: preprocessing of an argument that is said to persist (seen: trust.md)
# problem: rnn_step
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)
        self.input_size = input_size
        self.part = None

    def forward(self, x, hidden):
        left, right = self.i2h.weight.tensor_split([self.input_size], dim=1)
        if self.part is None or self.part.shape != hidden.shape:
            self.part = hidden @ right.T + self.i2h.bias
        state = torch.tanh(x @ left.T + self.part)
        return self.h2o(state), state
