# answer: C++ that calls at::fused_linear_clamp, which ATen does not have; does not build
# expect: compile_error
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cpp_source = """
torch::Tensor forward(torch::Tensor x, torch::Tensor w, torch::Tensor b, double factor) {
    return at::fused_linear_clamp(x, w, b, factor, -1.0, 1.0, /*residual=*/true);
}
"""

fused = load_inline(name="fused_linear_clamp", cpp_sources=cpp_source, functions=["forward"], verbose=True)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, factor):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.factor = factor

    def forward(self, x):
        return fused.forward(x, self.linear.weight, self.linear.bias, self.factor)
