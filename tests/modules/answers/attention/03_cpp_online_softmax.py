# answer: C++ in FlashAttention's manner: one query at a time, running maximum and rescaled output; right, and slower
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

flash_source = """
#include <cmath>
#include <vector>

static float dot(const float* __restrict a, const float* __restrict b, int64_t n) {
    float s = 0.f;
    for (int64_t i = 0; i < n; ++i) s += a[i] * b[i];
    return s;
}

static void scale_add(float* __restrict acc, float keep, const float* __restrict v, float p, int64_t n) {
    for (int64_t i = 0; i < n; ++i) acc[i] = acc[i] * keep + p * v[i];
}

torch::Tensor flash_cpu(torch::Tensor q, torch::Tensor k, torch::Tensor v) {
    q = q.contiguous();
    k = k.contiguous();
    v = v.contiguous();
    auto out = torch::zeros_like(q);
    const int64_t L = q.size(-2), D = q.size(-1), heads = q.numel() / (L * D);
    const float scale = 1.0f / std::sqrt((float)D);
    for (int64_t h = 0; h < heads; ++h) {
        const float *Q = q.data_ptr<float>() + h * L * D, *K = k.data_ptr<float>() + h * L * D, *V = v.data_ptr<float>() + h * L * D;
        for (int64_t i = 0; i < L; ++i) {
            float* o = out.data_ptr<float>() + (h * L + i) * D;
            float m = dot(Q + i * D, K, D) * scale, l = 0.0f;
            for (int64_t j = 0; j <= i; ++j) {
                const float s = dot(Q + i * D, K + j * D, D) * scale;
                const float top = std::max(m, s);
                const float keep = std::exp(m - top), p = std::exp(s - top);
                scale_add(o, keep, V + j * D, p, D);
                l = l * keep + p;
                m = top;
            }
            for (int64_t d = 0; d < D; ++d) o[d] /= l;
        }
    }
    return out;
}
"""

flash = load_inline(
    name="flash_cpu", cpp_sources=flash_source, functions=["flash_cpu"], extra_cflags=["-O3", "-march=native", "-ffast-math"]
)


class ModelNew(nn.Module):
    def __init__(self):
        super(ModelNew, self).__init__()

    def forward(self, q, k, v):
        return flash.flash_cpu(q, k, v)
