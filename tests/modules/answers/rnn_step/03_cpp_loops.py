# answer: C++, loops over dot products, four rows of the batch at a time; right, and slower than MKL
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

loops = """
#include <cmath>
#include <vector>

static float dot(const float* __restrict a, const float* __restrict b, long n) {
    float s = 0;
    for (long i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}

std::vector<torch::Tensor> rnn_loops(torch::Tensor x, torch::Tensor h, torch::Tensor wi, torch::Tensor bi,
                                     torch::Tensor wo, torch::Tensor bo) {
    x = x.contiguous();
    h = h.contiguous();
    const long B = x.size(0), I = x.size(1), H = h.size(1), O = wo.size(0);
    auto state = torch::empty({B, H}, x.options());
    auto out = torch::empty({B, O}, x.options());
    float *s = state.data_ptr<float>(), *o = out.data_ptr<float>();
    for (long b0 = 0; b0 < B; b0 += 4) {
        const long b1 = std::min(b0 + 4, B);
        for (long j = 0; j < H; j++) {
            const float* w = wi.data_ptr<float>() + j * (I + H);
            for (long b = b0; b < b1; b++)
                s[b * H + j] = std::tanh(dot(x.data_ptr<float>() + b * I, w, I) + dot(h.data_ptr<float>() + b * H, w + I, H)
                                         + bi.data_ptr<float>()[j]);
        }
        for (long j = 0; j < O; j++)
            for (long b = b0; b < b1; b++)
                o[b * O + j] = dot(s + b * H, wo.data_ptr<float>() + j * H, H) + bo.data_ptr<float>()[j];
    }
    return {out, state};
}
"""

rnn_loops = load_inline("rnn_loops", loops, functions=["rnn_loops"], extra_cflags=["-O3", "-march=native", "-ffast-math"])


class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)

    def forward(self, x, hidden):
        result = rnn_loops.rnn_loops(x, hidden, self.i2h.weight, self.i2h.bias, self.h2o.weight, self.h2o.bias)
        return result[0], result[1]
