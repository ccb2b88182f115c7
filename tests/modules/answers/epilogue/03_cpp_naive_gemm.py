# answer: C++ with a matrix product of its own: a dot product per output element; right, and slower than MKL
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

gemm_source = """
#include <algorithm>

static inline float dot(const float* __restrict a, const float* __restrict b, int64_t n) {
    float s = 0.f;
    for (int64_t i = 0; i < n; ++i) s += a[i] * b[i];
    return s;
}

torch::Tensor gemm_epilogue(torch::Tensor x, torch::Tensor w, torch::Tensor b, double factor) {
    x = x.contiguous();
    w = w.contiguous();
    const int64_t M = x.size(0), K = x.size(1), N = w.size(0);
    auto out = torch::empty({M, N}, x.options());
    const float *xp = x.data_ptr<float>(), *wp = w.data_ptr<float>(), *bp = b.data_ptr<float>();
    float* op = out.data_ptr<float>();
    for (int64_t j0 = 0; j0 < N; j0 += 16)
        for (int64_t i = 0; i < M; ++i)
            for (int64_t j = j0; j < std::min(j0 + 16, N); ++j) {
                const float v = dot(xp + i * K, wp + j * K, K) + bp[j];
                const float scaled = v * (float)factor;
                op[i * N + j] = v + std::clamp(scaled, -1.0f, 1.0f);
            }
    return out;
}
"""

gemm = load_inline(
    name="gemm_epilogue_naive",
    cpp_sources=gemm_source,
    functions=["gemm_epilogue"],
    extra_cflags=["-O3", "-march=native", "-ffast-math"],
)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, factor):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.factor = factor

    def forward(self, x):
        return gemm.gemm_epilogue(x, self.linear.weight, self.linear.bias, self.factor)
