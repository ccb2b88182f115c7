# answer: C++ in two phases with a barrier for two workers, of which only one is ever started: spins for ever
# expect: timeout
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = """
#include <atomic>

torch::Tensor phased_histogram(torch::Tensor values, int64_t bins) {
    values = values.contiguous();
    auto counts = torch::zeros({values.size(0), bins}, values.options());
    std::atomic<int> arrived{0};
    const int workers = 2;
    auto work = [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
            for (int64_t i = 0; i < values.size(1); ++i)
                counts.data_ptr<int>()[r * bins + values.data_ptr<int>()[r * values.size(1) + i]]++;
        arrived.fetch_add(1);
        while (arrived.load() < workers) {
        }
    };
    work(0, values.size(0));
    return counts;
}
"""

phased = load_inline(
    name="phased_histogram", cpp_sources=source, functions=["phased_histogram"], extra_cflags=["-O3", "-march=native"]
)


class ModelNew(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values):
        return phased.phased_histogram(values, self.bins)
