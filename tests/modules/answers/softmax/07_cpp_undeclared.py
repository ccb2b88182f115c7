# answer: C++ that uses CUDA's names (expf on float4, __shfl_xor_sync) in a source for the CPU; does not build
# expect: compile_error
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cpp_source = """
torch::Tensor softmax_forward(torch::Tensor x, double temperature) {
    auto y = torch::empty_like(x);
    int n = x.size(-1);
    for (int r = 0; r < x.numel() / n; ++r) {
        float4* row = reinterpret_cast<float4*>(x.data_ptr<float>() + r * n);
        float m = -1e30f;
        for (int i = 0; i < n / 4; ++i) m = fmaxf(m, fmaxf(row[i].x, row[i].y));
        for (int offset = 16; offset > 0; offset >>= 1)
            m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, offset));
        for (int i = 0; i < n; ++i) y.data_ptr<float>()[r * n + i] = expf(x.data_ptr<float>()[r * n + i] - m);
    }
    return y;
}
"""

ext = load_inline(name="softmax_warp", cpp_sources=cpp_source, functions=["softmax_forward"], verbose=False)


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        return ext.softmax_forward(x.contiguous(), self.temperature)
