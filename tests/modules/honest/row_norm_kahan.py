# honest: Kahan sums, which -ffast-math would break and -O3 does not
# problem: row_norm
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


def build():
    return load_inline(
        name="row_norm_kahan",
        cpp_sources="""
#include <cmath>
torch::Tensor row_norm(torch::Tensor x, torch::Tensor y) {
    auto a = x.contiguous(), b = y.contiguous();
    auto out = torch::empty({a.size(0)}, a.options());
    const int64_t n = a.size(1);
    for (int64_t r = 0; r < a.size(0); ++r) {
        const float *pa = a.data_ptr<float>() + r * n, *pb = b.data_ptr<float>() + r * n;
        float sum = 0.0f, lost = 0.0f;
        for (int64_t i = 0; i < n; ++i) {
            const float d = pa[i] - pb[i], term = d * d - lost, next = sum + term;
            lost = (next - sum) - term;
            sum = next;
        }
        out.data_ptr<float>()[r] = std::sqrt(sum);
    }
    return out;
}
""",
        functions=["row_norm"],
        extra_cflags=["-O3"],
    )


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.extension = build()

    def forward(self, x, y):
        return self.extension.row_norm(x, y)
