# answer: C++, four tables of counts per row, so that equal neighbours do not wait for each other
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

hist_source = r"""
#include <torch/extension.h>
#include <algorithm>
#include <vector>

torch::Tensor row_histogram(torch::Tensor values_in, int64_t bins) {
    TORCH_CHECK(values_in.dim() == 2, "expected a matrix");
    auto values = values_in.to(torch::kInt32).contiguous();
    const int64_t rows = values.size(0), n = values.size(1);
    auto counts = torch::empty({rows, bins}, values.options());
    const int32_t* vp = values.data_ptr<int32_t>();
    int32_t* cp = counts.data_ptr<int32_t>();
    at::parallel_for(0, rows, 1, [=](int64_t begin, int64_t end) {
        std::vector<int32_t> tables(4 * bins);
        int32_t *t0 = tables.data(), *t1 = t0 + bins, *t2 = t1 + bins, *t3 = t2 + bins;
        for (int64_t r = begin; r < end; ++r) {
            std::fill(tables.begin(), tables.end(), 0);
            const int32_t* v = vp + r * n;
            int64_t i = 0;
            for (; i + 4 <= n; i += 4) {
                ++t0[v[i]];
                ++t1[v[i + 1]];
                ++t2[v[i + 2]];
                ++t3[v[i + 3]];
            }
            for (; i < n; ++i) ++t0[v[i]];
            int32_t* c = cp + r * bins;
            for (int64_t b = 0; b < bins; ++b) c[b] = t0[b] + t1[b] + t2[b] + t3[b];
        }
    });
    return counts;
}
"""

histogram_module = load_inline(
    name="row_histogram_four_tables",
    cpp_sources=hist_source,
    functions=["row_histogram"],
    extra_cflags=["-O3", "-march=native"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values):
        return histogram_module.row_histogram(values, self.bins)
