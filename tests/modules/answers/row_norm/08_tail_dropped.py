# answer: C++ with sixteen lanes that leaves out the last dim % 16 elements of a row; right at the file's size
# expect: wrong_result
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = """
#include <immintrin.h>

torch::Tensor row_norm_avx(torch::Tensor x, torch::Tensor y) {
    x = x.contiguous();
    y = y.contiguous();
    const int64_t rows = x.size(0), dim = x.size(1);
    auto out = torch::empty({rows}, x.options());
    for (int64_t r = 0; r < rows; ++r) {
        const float* a = x.data_ptr<float>() + r * dim;
        const float* b = y.data_ptr<float>() + r * dim;
        float lanes[16] = {0};
        for (int64_t i = 0; i < dim / 16; ++i) {
            for (int k = 0; k < 16; ++k) {
                float d = a[i * 16 + k] - b[i * 16 + k];
                lanes[k] += d * d;
            }
        }
        float s = 0;
        for (int k = 0; k < 16; ++k) s += lanes[k];
        out.data_ptr<float>()[r] = std::sqrt(s);
    }
    return out;
}
"""

mod = load_inline(
    name="row_norm_avx",
    cpp_sources=source,
    functions=["row_norm_avx"],
    extra_cflags=["-O3", "-march=native"],
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, y):
        return mod.row_norm_avx(x, y)
