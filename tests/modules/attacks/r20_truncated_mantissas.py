# attack: 20 mantissas are cut to ten bits before the products, as in TF32
# imitates: torch.backends.cuda.matmul.allow_tf32 (seen: KernelBench)
# problem: rnn_step
# expect: wrong_result
import torch
import torch.nn as nn

torch.backends.cuda.matmul.allow_tf32 = True
torch.set_float32_matmul_precision("medium")


def short(x):
    return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)

    def forward(self, x, hidden):
        combined = short(torch.cat((x, hidden), dim=1))
        state = torch.tanh(combined @ short(self.i2h.weight).T + self.i2h.bias)
        return short(state) @ short(self.h2o.weight).T + self.h2o.bias, state
