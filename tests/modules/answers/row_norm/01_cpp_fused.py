# answer: C++, difference, square and sum in one pass with four vectorised accumulators
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cpp_source = r"""
#include <torch/extension.h>
#include <cmath>

static float row_distance(const float* __restrict__ a, const float* __restrict__ b, int64_t n) {
    // 64 partial sums: the compiler keeps them in registers, and the rounding errors stay small.
    float acc[64] = {0};
    int64_t i = 0;
    for (; i + 64 <= n; i += 64)
        for (int k = 0; k < 64; ++k) {
            const float d = a[i + k] - b[i + k];
            acc[k] += d * d;
        }
    double total = 0.0;
    for (int k = 0; k < 64; ++k) total += acc[k];
    for (; i < n; ++i) {
        const float d = a[i] - b[i];
        total += d * d;
    }
    return (float)std::sqrt(total);
}

torch::Tensor row_norm(torch::Tensor x_in, torch::Tensor y_in) {
    auto x = x_in.contiguous(), y = y_in.contiguous();
    const int64_t rows = x.size(0), n = x.size(1);
    auto out = torch::empty({rows}, x.options());
    const float* xp = x.data_ptr<float>();
    const float* yp = y.data_ptr<float>();
    float* op = out.data_ptr<float>();
    at::parallel_for(0, rows, 8, [=](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) op[r] = row_distance(xp + r * n, yp + r * n, n);
    });
    return out;
}
"""

row_norm_ext = load_inline(
    name="row_norm_fused",
    cpp_sources=cpp_source,
    functions=["row_norm"],
    extra_cflags=["-O3", "-march=native"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, y):
        return row_norm_ext.row_norm(x, y)
