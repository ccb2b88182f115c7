# answer: C++, blocks of 32 queries: a product with the keys so far, softmax in place with a polynomial exp, a product
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

attention_source = r"""
#include <torch/extension.h>
#include <algorithm>
#include <cfloat>
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

// The first `n` scores of a row become probabilities, the others up to `width` zeros.
static void softmax_row(float* __restrict__ s, int64_t n, int64_t width, float scale) {
    float top = -FLT_MAX, sum = 0.0f;
    for (int64_t i = 0; i < n; ++i) top = std::max(top, s[i]);
    for (int64_t i = 0; i < n; ++i) {
        s[i] = exp_neg((s[i] - top) * scale);
        sum += s[i];
    }
    const float inv = 1.0f / sum;
    for (int64_t i = 0; i < n; ++i) s[i] *= inv;
    for (int64_t i = n; i < width; ++i) s[i] = 0.0f;
}

torch::Tensor causal_attention(torch::Tensor q_in, torch::Tensor k_in, torch::Tensor v_in) {
    const int64_t length = q_in.size(-2), d = q_in.size(-1), rows = 32;
    auto q = q_in.reshape({-1, length, d}), k = k_in.reshape({-1, length, d}), v = v_in.reshape({-1, length, d});
    auto out = torch::empty({q.size(0), length, d}, q.options());
    const float scale = 1.0f / std::sqrt((float)d);
    auto kt = k.transpose(1, 2);
    for (int64_t begin = 0; begin < length; begin += rows) {
        const int64_t end = std::min(begin + rows, length), count = end - begin;
        auto scores = at::bmm(q.narrow(1, begin, count), kt.narrow(2, 0, end));
        float* s = scores.data_ptr<float>();
        for (int64_t r = 0; r < scores.size(0) * count; ++r) softmax_row(s + r * end, begin + r % count + 1, end, scale);
        out.narrow(1, begin, count).copy_(at::bmm(scores, v.narrow(1, 0, end)));
    }
    return out.view(q_in.sizes());
}
"""

attention_ext = load_inline(
    name="causal_attention_row_blocks",
    cpp_sources=attention_source,
    functions=["causal_attention"],
    extra_cflags=["-O3", "-march=native", "-ffast-math"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, q, k, v):
        return attention_ext.causal_attention(q, k, v)
