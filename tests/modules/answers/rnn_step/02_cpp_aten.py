# answer: C++ that calls ATen's cat, addmm and tanh_: only Python's overhead is saved
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cpp_src = """
std::tuple<at::Tensor, at::Tensor> step(const at::Tensor& x, const at::Tensor& h, const at::Tensor& wi, const at::Tensor& bi,
                                        const at::Tensor& wo, const at::Tensor& bo) {
    at::NoGradGuard guard;
    at::Tensor state = at::addmm(bi, at::cat({x, h}, 1), wi.t()).tanh_();
    return {at::addmm(bo, state, wo.t()), state};
}
"""


class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)
        self.cpp = load_inline(name="rnn_step_aten", cpp_sources=cpp_src, functions=["step"], extra_cflags=["-O2"])

    def forward(self, x, hidden):
        return self.cpp.step(x, hidden, self.i2h.weight, self.i2h.bias, self.h2o.weight, self.h2o.bias)
