# answer: C++, masks and sums eight rows side by side, so that eight chains of additions overlap
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

scan_source = r"""
#include <torch/extension.h>

template <int R>
static void scan_rows(const float* x, const bool* mask, float* out, int64_t n) {
    double sum[R] = {0};
    for (int64_t i = 0; i < n; ++i) {
        for (int r = 0; r < R; ++r) {
            sum[r] += x[r * n + i] * (float)mask[r * n + i];
            out[r * n + i] = (float)sum[r];
        }
    }
}

torch::Tensor masked_cumsum(torch::Tensor x_in, torch::Tensor mask_in) {
    TORCH_CHECK(mask_in.scalar_type() == torch::kBool, "the mask must be of bool");
    auto x = x_in.contiguous();
    auto mask = mask_in.contiguous();
    auto out = torch::empty_like(x);
    const int64_t n = x.size(-1);
    const int64_t rows = n ? x.numel() / n : 0;
    const float* xp = x.data_ptr<float>();
    const bool* mp = mask.data_ptr<bool>();
    float* op = out.data_ptr<float>();
    at::parallel_for(0, (rows + 7) / 8, 1, [=](int64_t begin, int64_t end) {
        for (int64_t block = begin; block < end; ++block) {
            int64_t r = block * 8;
            if (r + 8 <= rows) {
                scan_rows<8>(xp + r * n, mp + r * n, op + r * n, n);
            } else {
                for (; r < rows; ++r) scan_rows<1>(xp + r * n, mp + r * n, op + r * n, n);
            }
        }
    });
    return out;
}
"""

masked_cumsum = load_inline(
    name="masked_cumsum_eight_rows",
    cpp_sources=scan_source,
    functions=["masked_cumsum"],
    extra_cflags=["-O3", "-march=native"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x, mask):
        x, mask = x.movedim(self.dim, -1), mask.movedim(self.dim, -1)
        return masked_cumsum.masked_cumsum(x, mask).movedim(-1, self.dim)
