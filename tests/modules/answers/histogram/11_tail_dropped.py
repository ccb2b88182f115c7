# answer: C++ that counts eight values a step and leaves out the last length % 8; right at the file's length
# expect: wrong_result
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = """
torch::Tensor unrolled_histogram(torch::Tensor values, int64_t bins) {
    values = values.contiguous();
    const int64_t n = values.size(1);
    auto counts = torch::zeros({values.size(0), bins}, values.options());
    for (int64_t r = 0; r < values.size(0); ++r) {
        const int* v = values.data_ptr<int>() + r * n;
        int* c = counts.data_ptr<int>() + r * bins;
        for (int64_t i = 0; i + 8 <= n; i += 8) {
            c[v[i]]++;
            c[v[i + 1]]++;
            c[v[i + 2]]++;
            c[v[i + 3]]++;
            c[v[i + 4]]++;
            c[v[i + 5]]++;
            c[v[i + 6]]++;
            c[v[i + 7]]++;
        }
    }
    return counts;
}
"""

unrolled = load_inline(
    name="unrolled_histogram", cpp_sources=source, functions=["unrolled_histogram"], extra_cflags=["-O3", "-march=native"]
)


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values):
        return unrolled.unrolled_histogram(values, self.bins)
