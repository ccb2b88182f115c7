# honest: cuda_sources are built only where there is a device; C++ does the work elsewhere
# problem: convolution
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = """
#include <torch/extension.h>
#include <cuda_runtime.h>
__global__ void relu_kernel(float* data, int64_t n) {
    const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < n) data[i] = fmaxf(data[i], 0.0f);
}
torch::Tensor relu_mean(torch::Tensor x) {
    const int64_t n = x.numel();
    relu_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), n);
    return x.mean({2, 3});
}
"""

cpp_source = """
torch::Tensor relu_mean(torch::Tensor x) {
    x = x.contiguous();
    const int64_t planes = x.size(0) * x.size(1), area = x.size(2) * x.size(3);
    auto out = torch::empty({x.size(0), x.size(1)}, x.options());
    const float* from = x.data_ptr<float>();
    float* to = out.data_ptr<float>();
    for (int64_t p = 0; p < planes; ++p) {
        double sum = 0.0;
        for (int64_t i = 0; i < area; ++i) sum += std::max(from[p * area + i], 0.0f);
        to[p] = sum / area;
    }
    return out;
}
"""

if torch.cuda.is_available():
    tail = load_inline(
        name="conv_tail_cuda",
        cpp_sources="torch::Tensor relu_mean(torch::Tensor x);",
        cuda_sources=cuda_source,
        functions=["relu_mean"],
    )
else:
    tail = load_inline(
        name="conv_tail_cpp",
        cpp_sources=cpp_source,
        functions=["relu_mean"],
        extra_cflags=["-O3"],
    )


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)

    def forward(self, x):
        return tail.relu_mean(self.conv(x))
