# answer: C++, the online softmax (running maximum and rescaled sum) with plain expf; right, and slower
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cpp = """
#include <torch/extension.h>
#include <cmath>

torch::Tensor forward(torch::Tensor x, double temperature) {
    x = x.contiguous();
    auto y = torch::empty_like(x);
    const long n = x.size(-1), rows = x.numel() / n;
    const float* in = x.data_ptr<float>();
    float* out = y.data_ptr<float>();
    for (long r = 0; r < rows; ++r, in += n, out += n) {
        float m = -INFINITY;
        double d = 0.0;
        for (long i = 0; i < n; ++i) {
            const float v = in[i] / (float)temperature;
            if (v > m) {
                d = d * std::exp((double)m - v);
                m = v;
            }
            d += std::exp(v - m);
        }
        for (long i = 0; i < n; ++i)
            out[i] = std::exp(in[i] / (float)temperature - m) / (float)d;
    }
    return y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("forward", &forward, "online softmax");
}
"""

online_softmax = load_inline(name="online_softmax", cpp_sources=cpp, extra_cflags=["-O3"])


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        return online_softmax.forward(x, self.temperature)
