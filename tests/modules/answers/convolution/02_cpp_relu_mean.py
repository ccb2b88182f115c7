# answer: C++ for ReLU and mean in one pass over the library's convolution
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = """
#include <algorithm>

static float relu_mean_plane(const float* __restrict p, int64_t n) {
    float lanes[32] = {0};
    int64_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (int k = 0; k < 32; ++k) lanes[k] += p[i + k] > 0.f ? p[i + k] : 0.f;
    double s = 0;
    for (int k = 0; k < 32; ++k) s += lanes[k];
    for (; i < n; ++i) s += std::max(p[i], 0.f);
    return s / n;
}

torch::Tensor relu_mean(torch::Tensor x) {
    auto y = x.contiguous();
    const int64_t planes = y.size(0) * y.size(1), n = y.size(2) * y.size(3);
    auto out = torch::empty({y.size(0), y.size(1)}, y.options());
    for (int64_t p = 0; p < planes; ++p) out.data_ptr<float>()[p] = relu_mean_plane(y.data_ptr<float>() + p * n, n);
    return out;
}
"""


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.relu_mean = load_inline(
            name="relu_mean_planes",
            cpp_sources=[source],
            functions=["relu_mean"],
            extra_cflags=["-O3", "-march=native", "-ffast-math"],
        ).relu_mean

    def forward(self, x):
        return self.relu_mean(self.conv(x))
