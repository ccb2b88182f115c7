# honest: two extensions in one module, used one after the other
# problem: chain
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

first = load_inline(
    name="chain_first",
    cpp_sources="""
torch::Tensor gelu_of_line(const torch::Tensor& x, double scale, double shift) {
    return torch::gelu(x.mul(scale).add_(shift));
}
""",
    functions="gelu_of_line",
)

second = load_inline(
    name="chain_second",
    cpp_sources=[
        "#include <cmath>",
        """
torch::Tensor tanh_residual(torch::Tensor y, torch::Tensor x) {
    TORCH_CHECK(y.is_contiguous() && y.scalar_type() == torch::kFloat32);
    auto residual = x.contiguous();
    float* own = y.data_ptr<float>();
    const float* other = residual.data_ptr<float>();
    for (int64_t i = 0; i < y.numel(); ++i) own[i] = std::tanh(own[i]) + other[i];
    return y;
}
""",
    ],
    functions={"tanh_residual": "tanh(y) + x, in the place of y"},
    extra_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super().__init__()
        self.line = (scale, shift)

    def forward(self, x):
        return second.tanh_residual(first.gelu_of_line(x, *self.line), x)
