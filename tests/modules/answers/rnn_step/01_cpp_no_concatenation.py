# answer: C++, two products with the halves of the weight instead of a concatenation, tanh by a polynomial exp in place
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

rnn_source = r"""
#include <torch/extension.h>
#include <cmath>
#include <cstring>
#include <vector>

// exp(x) for x <= 0, relative error about 1e-7
static inline float exp_neg(float x) {
    x = x < -87.0f ? -87.0f : x;
    const int32_t n = (int32_t)(x * 1.44269504f - 0.5f);
    const float fn = (float)n;
    const float r = x - fn * 0.693359375f + fn * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const int32_t bits = (n + 127) << 23;
    float two_n;
    std::memcpy(&two_n, &bits, 4);
    return p * two_n;
}

static void tanh_in_place(float* __restrict__ p, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        const float e = exp_neg(-2.0f * std::fabs(p[i]));
        p[i] = std::copysign((1.0f - e) / (1.0f + e), p[i]);
    }
}

std::vector<torch::Tensor> rnn_step(torch::Tensor x, torch::Tensor h, torch::Tensor w, torch::Tensor b,
                                    torch::Tensor wo, torch::Tensor bo) {
    const int64_t in = x.size(1);
    auto state = at::addmm(b, x, w.narrow(1, 0, in).t());
    state.addmm_(h, w.narrow(1, in, w.size(1) - in).t());
    tanh_in_place(state.data_ptr<float>(), state.numel());
    return {at::addmm(bo, state, wo.t()), state};
}
"""

rnn_module = load_inline(
    name="rnn_step_no_concatenation",
    cpp_sources=rnn_source,
    functions=["rnn_step"],
    extra_cflags=["-O3", "-march=native", "-ffast-math"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)

    def forward(self, x, hidden):
        i2h, h2o = self.i2h, self.h2o
        out, state = rnn_module.rnn_step(x, hidden, i2h.weight, i2h.bias, h2o.weight, h2o.bias)
        return out, state
