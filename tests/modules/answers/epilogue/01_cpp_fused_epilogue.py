# answer: C++, addmm, then scaling, clamp and residual in one pass in place over the product
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

epilogue_source = r"""
#include <torch/extension.h>
#include <algorithm>

torch::Tensor linear_epilogue(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double factor_in) {
    auto out = at::addmm(bias, x, weight.t());
    float* p = out.data_ptr<float>();
    const float factor = (float)factor_in;
    at::parallel_for(0, out.numel(), 16384, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const float v = p[i];
            p[i] = v + std::min(1.0f, std::max(-1.0f, v * factor));
        }
    });
    return out;
}
"""

epilogue_ext = load_inline(
    name="linear_epilogue_fused",
    cpp_sources=epilogue_source,
    functions=["linear_epilogue"],
    extra_cflags=["-O3", "-march=native", "-ffast-math"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, factor):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.factor = factor

    def forward(self, x):
        return epilogue_ext.linear_epilogue(x, self.linear.weight, self.linear.bias, self.factor)
