# answer: C++, mean, variance and standardised row in three vectorised loops while the row is in the cache
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

moments_src = r"""
#include <torch/extension.h>
#include <cmath>
#include <vector>

static void one_row(const float* __restrict__ x, float* __restrict__ z, float* __restrict__ mv, int64_t n, double eps) {
    float sum = 0.0f;
    for (int64_t i = 0; i < n; ++i) sum += x[i];
    const float mean = sum / (float)n;
    float square = 0.0f, rest = 0.0f;
    for (int64_t i = 0; i < n; ++i) {
        const float d = x[i] - mean;
        square += d * d;
        rest += d;  // what the rounding of the mean left over
    }
    const float shift = rest / (float)n;
    const float variance = square / (float)n - shift * shift;
    const float inv = (float)(1.0 / std::sqrt((double)variance + eps));
    for (int64_t i = 0; i < n; ++i) z[i] = (x[i] - mean) * inv;
    mv[0] = mean + shift;
    mv[1] = variance;
}

std::vector<torch::Tensor> row_moments(torch::Tensor x_in, double eps) {
    auto x = x_in.contiguous();
    const int64_t rows = x.size(0), n = x.size(1);
    auto z = torch::empty_like(x);
    auto moments = torch::empty({rows, 2}, x.options());
    const float* xp = x.data_ptr<float>();
    float* zp = z.data_ptr<float>();
    float* mp = moments.data_ptr<float>();
    at::parallel_for(0, rows, 4, [=](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) one_row(xp + r * n, zp + r * n, mp + 2 * r, n, eps);
    });
    return {z, moments};
}
"""

row_moments_module = load_inline(
    name="row_moments_three_loops",
    cpp_sources=moments_src,
    functions=["row_moments"],
    extra_cflags=["-O3", "-march=native", "-ffast-math"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        z, moments = row_moments_module.row_moments(x, self.eps)
        return z, moments
