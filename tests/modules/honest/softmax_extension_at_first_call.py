# honest: the extension is built when the model is first called, as the documents' examples do
# problem: softmax
import functools

import torch
import torch.nn as nn


@functools.cache
def extension():
    from torch.utils.cpp_extension import load_inline

    source = """
#include <cmath>
#include <limits>
torch::Tensor softmax(torch::Tensor x, double temperature) {
    x = x.contiguous();
    auto out = torch::empty_like(x);
    const int64_t n = x.size(1);
    const float inverse = 1.0 / temperature;
    for (int64_t r = 0; r < x.size(0); ++r) {
        const float* in = x.data_ptr<float>() + r * n;
        float* o = out.data_ptr<float>() + r * n;
        float largest = -std::numeric_limits<float>::infinity();
        for (int64_t i = 0; i < n; ++i) largest = std::max(largest, in[i] * inverse);
        double sum = 0.0;
        for (int64_t i = 0; i < n; ++i) sum += o[i] = std::exp(in[i] * inverse - largest);
        const float factor = 1.0 / sum;
        for (int64_t i = 0; i < n; ++i) o[i] *= factor;
    }
    return out;
}
"""
    return load_inline("softmax_late", source, functions=["softmax"], extra_cflags=["-O3"])


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        return extension().softmax(x, self.temperature)
