# answer: C++ over the library's expf with a sum in double; built lazily in the constructor
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

_SOURCE = """
#include <cmath>
#include <limits>

torch::Tensor softmax_rows(torch::Tensor input, double temperature) {
    auto x = input.contiguous();
    auto out = torch::empty_like(x);
    int64_t cols = x.size(x.dim() - 1);
    int64_t rows = x.numel() / cols;
    const float* src = x.data_ptr<float>();
    float* dst = out.data_ptr<float>();
    const float t = static_cast<float>(temperature);
    for (int64_t r = 0; r < rows; r++) {
        const float* a = src + r * cols;
        float* b = dst + r * cols;
        float m = -std::numeric_limits<float>::infinity();
        for (int64_t c = 0; c < cols; c++) {
            b[c] = a[c] / t;
            m = b[c] > m ? b[c] : m;
        }
        double total = 0.0;
        for (int64_t c = 0; c < cols; c++) {
            b[c] = expf(b[c] - m);
            total += b[c];
        }
        const float scale = static_cast<float>(1.0 / total);
        for (int64_t c = 0; c < cols; c++) b[c] *= scale;
    }
    return out;
}
"""

_module = None


def _get_module():
    global _module
    if _module is None:
        _module = load_inline(
            name="softmax_rows_ext",
            cpp_sources=[_SOURCE],
            functions=["softmax_rows"],
            extra_cflags=["-O3", "-march=native"],
        )
    return _module


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature
        self.mod = _get_module()

    def forward(self, x):
        return self.mod.softmax_rows(x, float(self.temperature))
