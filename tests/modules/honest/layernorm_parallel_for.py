# honest: at::parallel_for over rows, with sums in double
# problem: layernorm
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <ATen/Parallel.h>
#include <cmath>

torch::Tensor norm_silu(torch::Tensor x, torch::Tensor w, torch::Tensor b, torch::Tensor gain,
                        double eps) {
    auto input = x.contiguous();
    auto out = torch::empty_like(input);
    const int64_t n = input.size(-1), rows = input.numel() / n;
    const float *px = input.data_ptr<float>(), *pw = w.data_ptr<float>();
    const float *pb = b.data_ptr<float>(), *pg = gain.data_ptr<float>();
    float* po = out.data_ptr<float>();
    at::parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
            const float* row = px + r * n;
            double sum = 0, squares = 0;
            for (int64_t i = 0; i < n; ++i) sum += row[i];
            const double mean = sum / n;
            for (int64_t i = 0; i < n; ++i) squares += (row[i] - mean) * (row[i] - mean);
            const float inverse = 1.0 / std::sqrt(squares / n + eps);
            for (int64_t i = 0; i < n; ++i) {
                const float y = ((row[i] - (float)mean) * inverse * pw[i] + pb[i]) * pg[i];
                po[r * n + i] = y / (1.0f + std::exp(-y));
            }
        }
    });
    return out;
}
"""
ext = load_inline("norm_silu", source, functions=["norm_silu"], extra_cflags=["-O3", "-fopenmp"])


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gain = nn.Parameter(torch.randn(features))

    def forward(self, x):
        norm = self.norm
        return ext.norm_silu(x, norm.weight, norm.bias, self.gain, norm.eps)
