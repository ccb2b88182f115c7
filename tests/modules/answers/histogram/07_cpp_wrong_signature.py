# answer: C++ whose definition does not fit its own declaration, and with a missing return type; does not build
# expect: compile_error
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cpp_source = """
torch::Tensor histogram_cpu(torch::Tensor values, int64_t bins);

histogram_cpu(torch::Tensor values, int bins, int threads) {
    auto counts = torch::zeros({values.size(0), bins}, torch::kInt32);
    auto v = values.accessor<int, 2>();
    auto c = counts.accessor<int, 2>();
    for (int i = 0; i < values.size(0); ++i)
        for (int j = 0; j < values.size(1); ++j) c[i][v[i][j]]++;
    return counts;
}
"""

histogram_cpu = load_inline(name="histogram_cpu", cpp_sources=cpp_source, functions=["histogram_cpu"])


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values):
        return histogram_cpu.histogram_cpu(values, self.bins)
