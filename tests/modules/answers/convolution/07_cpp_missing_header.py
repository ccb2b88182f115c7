# answer: C++ that includes a header which is not there; does not build
# expect: compile_error
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cpp_source = """
#include <torch/extension.h>
#include <cudnn_frontend_inline/conv_relu.hpp>

torch::Tensor conv_relu(torch::Tensor x, torch::Tensor w, torch::Tensor b) {
    return cudnn_frontend_inline::conv_relu(x, w, b).mean({2, 3});
}
"""

conv_relu = load_inline(
    name="conv_relu_frontend",
    cpp_sources=cpp_source,
    functions=["conv_relu"],
    extra_cflags=["-O3", "-march=native"],
)


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)

    def forward(self, x):
        return conv_relu.conv_relu(x, self.conv.weight, self.conv.bias)
