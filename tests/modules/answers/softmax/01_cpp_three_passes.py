# answer: C++, per row a maximum, a vectorised polynomial exp with its sum, and a scaling, all within the cache
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

softmax_cpp_source = r"""
#include <torch/extension.h>
#include <algorithm>
#include <cfloat>
#include <cstring>

// exp(x) for x <= 0, relative error about 1e-7
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

static void softmax_row(const float* __restrict__ x, float* __restrict__ y, int64_t n, float inv_t) {
    float largest = -FLT_MAX;
    for (int64_t i = 0; i < n; ++i) largest = std::max(largest, x[i]);
    float sum = 0.0f;
    for (int64_t i = 0; i < n; ++i) {
        const float e = exp_neg((x[i] - largest) * inv_t);
        y[i] = e;
        sum += e;
    }
    const float inv = 1.0f / sum;
    for (int64_t i = 0; i < n; ++i) y[i] *= inv;
}

torch::Tensor softmax_temperature(torch::Tensor x_in, double temperature) {
    TORCH_CHECK(x_in.dtype() == torch::kFloat32, "expected float32");
    auto x = x_in.contiguous();
    auto y = torch::empty_like(x);
    const int64_t n = x.size(-1);
    const int64_t rows = n ? x.numel() / n : 0;
    const float* xp = x.data_ptr<float>();
    float* yp = y.data_ptr<float>();
    const float inv_t = (float)(1.0 / temperature);
    at::parallel_for(0, rows, 4, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) softmax_row(xp + r * n, yp + r * n, n, inv_t);
    });
    return y;
}
"""

softmax_module = load_inline(
    name="softmax_three_passes",
    cpp_sources=softmax_cpp_source,
    functions=["softmax_temperature"],
    extra_cflags=["-O3", "-march=native", "-ffast-math"],
    verbose=False,
)


class ModelNew(nn.Module):
    # Multiplying by 1 / temperature assumes a positive temperature, as the model's is.
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        return softmax_module.softmax_temperature(x, self.temperature)
