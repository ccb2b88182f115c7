# answer: C++ whose list of functions names one that the source does not define; does not build
# expect: compile_error
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cpp_source = """
torch::Tensor rnn_hidden(torch::Tensor x, torch::Tensor h, torch::Tensor w, torch::Tensor b) {
    return at::addmm(b, at::cat({x, h}, 1), w.t()).tanh_();
}
"""

ext = load_inline(name="rnn_hidden", cpp_sources=cpp_source, functions=["rnn_forward"], verbose=False)


class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)

    def forward(self, x, hidden):
        hidden = ext.rnn_forward(x, hidden, self.i2h.weight, self.i2h.bias)
        return self.h2o(hidden), hidden
