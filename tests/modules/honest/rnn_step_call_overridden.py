# honest: __call__ is overridden to do without the hooks, and forward goes through it
# problem: rnn_step
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)

    def __call__(self, x, hidden):
        state = torch.tanh(self.i2h.forward(torch.hstack([x, hidden])))
        return (self.h2o.forward(state), state)

    def forward(self, *arguments):
        return self(*arguments)
