# answer: returns a view of the state that it was given instead of the new one
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)

    def forward(self, x, hidden):
        combined = torch.cat((x, hidden), dim=1)
        new = torch.tanh(self.i2h(combined))
        return self.h2o(new), hidden.view(hidden.shape)
