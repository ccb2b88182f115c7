# honest: an OpenMP loop for the epilogue; the product is the library's
# problem: epilogue
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

ext = load_inline(
    name="epilogue_omp",
    cpp_sources="""
#include <algorithm>
void epilogue_(torch::Tensor x, double factor) {
    TORCH_CHECK(x.is_contiguous());
    float* data = x.data_ptr<float>();
    const int64_t n = x.numel();
    const float f = factor;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; ++i) {
        data[i] += std::min(1.0f, std::max(-1.0f, data[i] * f));
    }
}
""",
    functions=["epilogue_"],
    extra_cflags=["-O3", "-fopenmp"],
    extra_ldflags=["-lgomp"],
)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, factor):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.factor = factor

    def forward(self, x):
        x = self.linear(x)
        ext.epilogue_(x, self.factor)
        return x
