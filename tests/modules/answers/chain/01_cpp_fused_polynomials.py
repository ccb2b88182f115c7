# answer: C++, one fused pass with a polynomial exp, erf of Abramowitz and Stegun and tanh from exp
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cpp_source = r"""
#include <torch/extension.h>
#include <cmath>
#include <cstdint>
#include <cstring>

// exp(x) for x <= 0, relative error about 1e-7; written so that gcc vectorises the loop that calls it
static inline float exp_neg(float x) {
    x = x < -87.0f ? -87.0f : x;
    const int32_t n = (int32_t)(x * 1.44269504f - 0.5f);
    const float fn = (float)n;
    float r = x - fn * 0.693359375f;
    r = r + fn * 2.12194440e-4f;
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

static inline float gelu(float y) {
    const float z = std::fabs(y) * 0.70710678f;
    const float t = 1.0f / (1.0f + 0.3275911f * z);
    float p = 1.061405429f;
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    const float erf = std::copysign(1.0f - p * t * exp_neg(-z * z), y);
    return 0.5f * y * (1.0f + erf);
}

static inline float tanh_approx(float a) {
    const float e = exp_neg(-2.0f * std::fabs(a));
    return std::copysign((1.0f - e) / (1.0f + e), a);
}

static void chain_range(const float* __restrict__ in, float* __restrict__ res, int64_t n, float scale, float shift) {
    for (int64_t i = 0; i < n; ++i) {
        const float v = in[i];
        res[i] = tanh_approx(gelu(v * scale + shift)) + v;
    }
}

torch::Tensor chain_forward(torch::Tensor x_in, double scale, double shift) {
    auto x = x_in.contiguous();
    auto out = torch::empty_like(x);
    const float* in = x.data_ptr<float>();
    float* res = out.data_ptr<float>();
    at::parallel_for(0, x.numel(), 16384, [&](int64_t begin, int64_t end) {
        chain_range(in + begin, res + begin, end - begin, (float)scale, (float)shift);
    });
    return out;
}
"""

chain = load_inline(
    name="chain_fused_polynomials",
    cpp_sources=cpp_source,
    functions=["chain_forward"],
    extra_cflags=["-O3", "-march=native", "-ffast-math"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super().__init__()
        self.scale = scale
        self.shift = shift

    def forward(self, x):
        return chain.chain_forward(x, self.scale, self.shift)
