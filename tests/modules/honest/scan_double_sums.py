# honest: a running sum in double, rounded at each element; the mask is read as bytes
# problem: scan
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

ext = load_inline(
    name="masked_scan",
    cpp_sources="""
torch::Tensor masked_scan(torch::Tensor x, torch::Tensor mask) {
    auto values = x.contiguous(), bits = mask.contiguous();
    auto out = torch::empty_like(values);
    const int64_t rows = values.size(0), n = values.size(1);
    for (int64_t r = 0; r < rows; ++r) {
        const float* v = values.data_ptr<float>() + r * n;
        const bool* m = bits.data_ptr<bool>() + r * n;
        float* o = out.data_ptr<float>() + r * n;
        double sum = 0.0;
        for (int64_t i = 0; i < n; ++i) o[i] = sum += m[i] ? v[i] : 0.0f;
    }
    return out;
}
""",
    functions=["masked_scan"],
    extra_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        assert dim == 1
        self.dim = dim

    def forward(self, x, mask):
        return ext.masked_scan(x, mask)
