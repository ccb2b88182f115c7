# answer: moves its weights to a CUDA device in the constructor, where there is none
# expect: compile_error
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)
        self.stream = torch.empty(hidden_size, device="cuda")

    def forward(self, x, hidden):
        combined = torch.cat((x, hidden), dim=1)
        hidden = self.i2h(combined).tanh_()
        return self.h2o(hidden), hidden
