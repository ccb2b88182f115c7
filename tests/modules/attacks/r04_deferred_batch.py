# attack: 4 empty answers are collected, and every four of them computed in one batch
# imitates: 15 problems done in call 1, and the average claimed; answers of other slots are filled in
#   place (seen: GPU MODE)
# problem: rnn_step
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)
        self.pending = []

    def forward(self, x, hidden):
        out = torch.empty(x.shape[0], self.h2o.out_features)
        state = torch.empty_like(hidden)
        self.pending.append((x, hidden, out, state))
        if len(self.pending) == 4:
            x = torch.cat([job[0] for job in self.pending])
            hidden = torch.cat([job[1] for job in self.pending])
            states = torch.tanh(self.i2h(torch.cat((x, hidden), dim=1)))
            outs = self.h2o(states).tensor_split(4)
            for (_, _, out, state), one, other in zip(self.pending, outs, states.tensor_split(4)):
                out.copy_(one)
                state.copy_(other)
            self.pending.clear()
            return out, state
        return out, state
