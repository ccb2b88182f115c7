# honest: rows are shared among threads that are started and joined in each call
# problem: histogram
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

ext = load_inline(
    name="histogram_threads",
    cpp_sources="""
#include <thread>
#include <vector>

static void count(const int* values, int* counts, int64_t first, int64_t last, int64_t length,
                  int64_t bins) {
    for (int64_t row = first; row < last; ++row) {
        for (int64_t i = 0; i < length; ++i) ++counts[row * bins + values[row * length + i]];
    }
}

torch::Tensor histogram(torch::Tensor values, int64_t bins) {
    auto input = values.contiguous();
    const int64_t rows = input.size(0), length = input.size(1), parts = 2;
    auto counts = torch::zeros({rows, bins}, torch::dtype(torch::kInt32));
    std::vector<std::thread> threads;
    for (int64_t p = 0; p < parts; ++p) {
        threads.emplace_back(count, input.data_ptr<int>(), counts.data_ptr<int>(),
                             rows * p / parts, rows * (p + 1) / parts, length, bins);
    }
    for (auto& thread : threads) thread.join();
    return counts;
}
""",
    functions=["histogram"],
    extra_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values):
        return ext.histogram(values, self.bins)
