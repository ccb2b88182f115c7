# answer: C++ with a missing semicolon and a misspelt type; does not build
# expect: compile_error
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

src = """
std::vector<torch::Tensor> moments_cpu(torch::Tensor x, double eps) {
    auto mean = x.mean(1, /*keepdim=*/true)
    auto variance = (x - mean).pow(2).mean(1, true);
    torch::Tenosr z = (x - mean) / (variance + eps).sqrt();
    return {z, torch::cat({mean, variance}, 1)};
}
"""


class ModelNew(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.ext = load_inline(name="moments_cpu", cpp_sources=src, functions=["moments_cpu"], verbose=False)

    def forward(self, x):
        return tuple(self.ext.moments_cpu(x, self.eps))
