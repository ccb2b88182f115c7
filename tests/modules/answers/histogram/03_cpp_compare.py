# answer: C++, one vectorised pass of comparisons per bin; right, and its work grows with the bins
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cpp_source = """
static int count_equal(const int* __restrict v, int64_t n, int b) {
    int c = 0;
    for (int64_t i = 0; i < n; ++i) c += v[i] == b;
    return c;
}

torch::Tensor compare_count(torch::Tensor values, int64_t bins) {
    values = values.contiguous();
    const int64_t rows = values.size(0), n = values.size(1);
    auto out = torch::empty({rows, bins}, values.options().dtype(torch::kInt));
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t b = 0; b < bins; ++b)
            out.data_ptr<int>()[r * bins + b] = count_equal(values.data_ptr<int>() + r * n, n, (int)b);
    return out;
}
"""
module = load_inline(
    name="compare_count", cpp_sources=[cpp_source], functions={"compare_count": "histogram by comparison"}, extra_cflags=["-O3", "-march=native"]
)


class ModelNew(nn.Module):
    def __init__(self, bins):
        super(ModelNew, self).__init__()
        self.bins = bins

    def forward(self, values):
        return module.compare_count(values, self.bins)
