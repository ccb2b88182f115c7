# attack: 38 a pragma turns on fast maths, a constructor flushes denormals, and values are rounded to
#   float16 on the way
# imitates: #pragma GCC optimize, by which checks for NaN and the order of sums are dropped (seen: ours)
# problem: moments
# expect: wrong_result
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = """
#include <cmath>
#include <vector>
#include <xmmintrin.h>
#pragma GCC optimize("O3,fast-math")
__attribute__((constructor)) static void flush() { _mm_setcsr(_mm_getcsr() | 0x8040); }
std::vector<at::Tensor> moments(at::Tensor x, double eps) {
    const int64_t rows = x.size(0), n = x.size(1);
    auto standard = at::empty_like(x);
    auto both = at::empty({rows, 2}, x.options());
    for (int64_t r = 0; r < rows; ++r) {
        const float* in = x.data_ptr<float>() + r * n;
        float sum = 0.0f, squares = 0.0f;
        for (int64_t i = 0; i < n; ++i) sum += (float)(_Float16)in[i], squares += in[i] * in[i];
        const float mean = sum / n, variance = squares / n - mean * mean;
        const float inverse = 1.0f / std::sqrt(variance + (float)eps);
        for (int64_t i = 0; i < n; ++i) {
            standard.data_ptr<float>()[r * n + i] = (float)(_Float16)((in[i] - mean) * inverse);
        }
        both.data_ptr<float>()[2 * r] = mean;
        both.data_ptr<float>()[2 * r + 1] = variance;
    }
    return {standard, both};
}
"""
ext = load_inline("moments_fast", source, functions=["moments"], extra_cflags=["-O3"])


class ModelNew(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        return list(ext.moments(x, self.eps))
