# answer: C++ whose epilogue goes over exactly 128 x 512 elements; right at the file's own size only
# expect: wrong_result
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = """
#include <algorithm>
constexpr int64_t BATCH = 128, OUT = 512;

torch::Tensor epilogue_fixed(torch::Tensor x, double factor) {
    auto y = x.clone();
    const float* in = x.data_ptr<float>();
    float* out = y.data_ptr<float>();
    const int64_t n = std::min(BATCH * OUT, x.numel() / OUT * OUT);
    for (int64_t i = 0; i < n; ++i) out[i] = in[i] + std::max(-1.0f, std::min(1.0f, in[i] * (float)factor));
    return y;
}
"""

fixed = load_inline(
    name="epilogue_fixed", cpp_sources=source, functions=["epilogue_fixed"], extra_cflags=["-O3", "-march=native"]
)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, factor):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.factor = factor

    def forward(self, x):
        return fixed.epilogue_fixed(self.linear(x), self.factor)
