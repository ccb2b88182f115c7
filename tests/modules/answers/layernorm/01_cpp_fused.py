# answer: C++, normalisation, both weights, gain and SiLU in one go per row, with a polynomial exp
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

layernorm_silu_source = r"""
#include <torch/extension.h>
#include <cmath>
#include <cstring>

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

static void one_row(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ b,
                    const float* __restrict__ g, float* __restrict__ out, int64_t n, double eps) {
    float sum = 0.0f, square = 0.0f;
    for (int64_t i = 0; i < n; ++i) sum += x[i];
    const float mean = sum / (float)n;
    for (int64_t i = 0; i < n; ++i) square += (x[i] - mean) * (x[i] - mean);
    const float inv = (float)(1.0 / std::sqrt((double)square / n + eps));
    for (int64_t i = 0; i < n; ++i) {
        const float y = ((x[i] - mean) * inv * w[i] + b[i]) * g[i];
        const float e = exp_neg(-std::fabs(y));
        out[i] = y * (y > 0.0f ? 1.0f : e) / (1.0f + e);
    }
}

torch::Tensor layernorm_silu(torch::Tensor x_in, torch::Tensor w_in, torch::Tensor b_in, torch::Tensor g_in, double eps) {
    auto x = x_in.contiguous(), w = w_in.contiguous(), b = b_in.contiguous(), g = g_in.contiguous();
    auto out = torch::empty_like(x);
    const int64_t n = x.size(-1), rows = x.numel() / n;
    const float *xp = x.data_ptr<float>(), *wp = w.data_ptr<float>(), *bp = b.data_ptr<float>(), *gp = g.data_ptr<float>();
    float* op = out.data_ptr<float>();
    at::parallel_for(0, rows, 16, [=](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) one_row(xp + r * n, wp, bp, gp, op + r * n, n, eps);
    });
    return out;
}
"""

ext = load_inline(
    name="layernorm_silu_fused",
    cpp_sources=layernorm_silu_source,
    functions=["layernorm_silu"],
    extra_cflags=["-O3", "-march=native", "-ffast-math"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gain = nn.Parameter(torch.randn(features))

    def forward(self, x):
        return ext.layernorm_silu(x, self.norm.weight, self.norm.bias, self.gain, self.norm.eps)
