# answer: C++, blocks of sixteen summed by a logarithmic scan in float, with the carry between blocks in double
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cpp = """
constexpr int W = 16;

static inline void block_scan(const float* __restrict x, const bool* __restrict m, float* __restrict out, double& carry) {
    float a[W], b[W];
    for (int k = 0; k < W; ++k) a[k] = x[k] * (float)m[k];
    for (int k = 0; k < W; ++k) b[k] = a[k] + (k >= 1 ? a[k - 1] : 0.f);
    for (int k = 0; k < W; ++k) a[k] = b[k] + (k >= 2 ? b[k - 2] : 0.f);
    for (int k = 0; k < W; ++k) b[k] = a[k] + (k >= 4 ? a[k - 4] : 0.f);
    for (int k = 0; k < W; ++k) a[k] = b[k] + (k >= 8 ? b[k - 8] : 0.f);
    for (int k = 0; k < W; ++k) out[k] = (float)(carry + a[k]);
    carry += a[W - 1];
}

torch::Tensor scan_cpu(torch::Tensor x, torch::Tensor mask) {
    x = x.contiguous();
    mask = mask.contiguous();
    auto out = torch::empty_like(x);
    const int64_t rows = x.size(0), n = x.size(1);
    for (int64_t r = 0; r < rows; ++r) {
        const float* xp = x.data_ptr<float>() + r * n;
        const bool* mp = mask.data_ptr<bool>() + r * n;
        float* op = out.data_ptr<float>() + r * n;
        double carry = 0.0;
        int64_t i = 0;
        for (; i + W <= n; i += W) block_scan(xp + i, mp + i, op + i, carry);
        for (; i < n; ++i) {
            carry += mp[i] ? xp[i] : 0.f;
            op[i] = (float)carry;
        }
    }
    return out;
}
"""


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        assert dim in (1, -1), "written for the last dimension of a matrix"
        self.dim = dim
        self.ops = load_inline(
            name="scan_two_level",
            cpp_sources=cpp,
            functions=["scan_cpu"],
            extra_cflags=["-O3", "-march=native"],
        )

    def forward(self, x, mask):
        return self.ops.scan_cpu(x, mask)
