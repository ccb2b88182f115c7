# honest: AVX2 intrinsics by a target attribute, with a plain loop for other machines
# problem: softmax
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = """
#include <immintrin.h>
#include <cmath>

__attribute__((target("avx2"))) static void scale_avx2(float* data, int64_t n, float factor) {
    const __m256 f = _mm256_set1_ps(factor);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(data + i, _mm256_mul_ps(_mm256_loadu_ps(data + i), f));
    for (; i < n; ++i) data[i] *= factor;
}

static void scale_plain(float* data, int64_t n, float factor) {
    for (int64_t i = 0; i < n; ++i) data[i] *= factor;
}

torch::Tensor softmax(torch::Tensor x, double temperature) {
    x = x.contiguous();
    auto out = torch::empty_like(x);
    const int64_t n = x.size(-1), rows = x.numel() / n;
    const bool avx2 = __builtin_cpu_supports("avx2");
    for (int64_t r = 0; r < rows; ++r) {
        const float* in = x.data_ptr<float>() + r * n;
        float* o = out.data_ptr<float>() + r * n;
        float largest = in[0];
        for (int64_t i = 1; i < n; ++i) largest = in[i] > largest ? in[i] : largest;
        double sum = 0.0;
        for (int64_t i = 0; i < n; ++i) {
            o[i] = std::exp((in[i] - largest) / (float)temperature);
            sum += o[i];
        }
        (avx2 ? scale_avx2 : scale_plain)(o, n, (float)(1.0 / sum));
    }
    return out;
}
"""
ext = load_inline("softmax_avx2", [source], functions=["softmax"], extra_cflags=["-O3"])


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        return ext.softmax(x, self.temperature)
