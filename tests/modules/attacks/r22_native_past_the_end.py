# attack: 22 C++ pointers write one element before the input and 16 behind it
# imitates: out-of-bounds writes that hit someone else's data (seen: trust.md)
# problem: row_norm
# expect: crash
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = """
#include <cmath>
torch::Tensor row_norm(torch::Tensor x, torch::Tensor y) {
    auto out = torch::empty({x.size(0)}, x.options());
    float* a = x.data_ptr<float>();
    const float* b = y.data_ptr<float>();
    const int64_t n = x.size(1);
    for (int64_t r = 0; r < x.size(0); ++r) {
        double sum = 0.0;
        for (int64_t i = r * n; i < r * n + n; ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
        out.data_ptr<float>()[r] = std::sqrt(sum);
    }
    a[-1] = 0.0f;
    for (int64_t i = 0; i < 16; ++i) a[x.numel() + i] = 0.0f;
    return out;
}
"""
ext = load_inline("row_norm_outside", source, functions=["row_norm"], extra_cflags=["-O3"])


class ModelNew(nn.Module):
    def forward(self, x, y):
        return ext.row_norm(x, y)
