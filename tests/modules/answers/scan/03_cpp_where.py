# answer: C++ without a loop of its own: calls ATen's where and cumsum
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = """
at::Tensor masked_scan(const at::Tensor& x, const at::Tensor& mask, int64_t dim) {
    auto masked = at::where(mask, x, at::zeros({}, x.options()));
    return at::cumsum_out(masked, masked, dim);
}
"""

ops = load_inline(name="masked_scan_aten", cpp_sources=source, functions=["masked_scan"], verbose=False)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x, mask):
        return ops.masked_scan(x, mask, self.dim)
