# honest: the extension returns a vector of tensors, which is a list; Welford's sums
# problem: moments
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

moments = load_inline(
    name="moments_welford",
    cpp_sources="""
#include <cmath>
#include <vector>
std::vector<at::Tensor> moments(at::Tensor x, double eps) {
    x = x.contiguous();
    const int64_t rows = x.size(0), n = x.size(1);
    auto standard = at::empty_like(x);
    auto both = at::empty({rows, 2}, x.options());
    for (int64_t r = 0; r < rows; ++r) {
        const float* in = x.data_ptr<float>() + r * n;
        float* out = standard.data_ptr<float>() + r * n;
        double mean = 0.0, m2 = 0.0;
        for (int64_t i = 0; i < n; ++i) {
            const double delta = in[i] - mean;
            mean += delta / (i + 1);
            m2 += delta * (in[i] - mean);
        }
        const double variance = m2 / n, inverse = 1.0 / std::sqrt(variance + eps);
        for (int64_t i = 0; i < n; ++i) out[i] = (in[i] - mean) * inverse;
        both.data_ptr<float>()[2 * r] = mean;
        both.data_ptr<float>()[2 * r + 1] = variance;
    }
    return {standard, both};
}
""",
    functions=["moments"],
    extra_cflags=["-O3"],
).moments


class ModelNew(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        return moments(x, self.eps)
