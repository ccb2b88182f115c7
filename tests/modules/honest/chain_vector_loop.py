# honest: one fused loop by load_inline at import, as most candidates for KernelBench are
# problem: chain
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = """
#include <torch/extension.h>
#include <cmath>

torch::Tensor chain_forward(torch::Tensor x, double scale, double shift) {
    auto input = x.contiguous();
    auto out = torch::empty_like(input);
    const float* from = input.data_ptr<float>();
    float* to = out.data_ptr<float>();
    const float a = scale, b = shift;
    for (int64_t i = 0; i < input.numel(); ++i) {
        const float y = from[i] * a + b;
        const float gelu = 0.5f * y * (1.0f + std::erf(y * 0.70710678118654752f));
        to[i] = std::tanh(gelu) + from[i];
    }
    return out;
}
"""

chain = load_inline(
    name="chain_fused",
    cpp_sources="torch::Tensor chain_forward(torch::Tensor x, double scale, double shift);" + source,
    functions=["chain_forward"],
    extra_cflags=["-O3"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super().__init__()
        self.scale = scale
        self.shift = shift
        self.chain = chain

    def forward(self, x):
        return self.chain.chain_forward(x, self.scale, self.shift)
