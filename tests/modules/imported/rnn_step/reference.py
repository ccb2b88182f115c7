import torch
import torch.nn as nn


class Model(nn.Module):
    """
    One step of a recurrent network; returns the output and the new state.
    """

    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)

    def forward(self, x, hidden):
        combined = torch.cat((x, hidden), dim=1)
        hidden = torch.tanh(self.i2h(combined))
        return self.h2o(hidden), hidden


batch_size = 64
input_size = 256
hidden_size = 256
output_size = 128


def get_inputs():
    return [torch.randn(batch_size, input_size), torch.randn(batch_size, hidden_size)]


def get_init_inputs():
    return [input_size, hidden_size, output_size]
