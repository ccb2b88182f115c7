# answer: C++, sixteen explicit lanes for both sums, returned as a std::tuple; no fast-math
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cpp = """
#include <tuple>

constexpr int L = 32;

template <typename F>
static inline double lane_sum(int64_t n, F f) {
    float acc[L] = {0};
    int64_t i = 0;
    for (; i + L <= n; i += L)
        for (int k = 0; k < L; ++k) acc[k] += f(i + k);
    double s = 0;
    for (int k = 0; k < L; ++k) s += acc[k];
    for (; i < n; ++i) s += f(i);
    return s;
}

std::tuple<at::Tensor, at::Tensor> standardise(at::Tensor x, double eps) {
    x = x.contiguous();
    auto out = at::empty_like(x);
    auto mom = at::empty({x.size(0), 2}, x.options());
    const int64_t n = x.size(1);
    for (int64_t r = 0; r < x.size(0); ++r) {
        const float* p = x.data_ptr<float>() + r * n;
        float* o = out.data_ptr<float>() + r * n;
        const float mean = lane_sum(n, [=](int64_t i) { return p[i]; }) / n;
        const float var = lane_sum(n, [=](int64_t i) { return (p[i] - mean) * (p[i] - mean); }) / n;
        const float denominator = std::sqrt(var + (float)eps);
        for (int64_t i = 0; i < n; ++i) o[i] = (p[i] - mean) / denominator;
        mom.data_ptr<float>()[2 * r] = mean;
        mom.data_ptr<float>()[2 * r + 1] = var;
    }
    return {out, mom};
}
"""

standardise = load_inline(
    name="standardise_lanes",
    cpp_sources=[cpp],
    functions=["standardise"],
    extra_cflags=["-O3", "-march=native"],
).standardise


class ModelNew(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        return standardise(x, self.eps)
