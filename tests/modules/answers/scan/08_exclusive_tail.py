# answer: C++ in tiles of 512 that starts the last, incomplete tile without the carry; right at the file's size
# expect: wrong_result
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = """
torch::Tensor tiled_scan(torch::Tensor x, torch::Tensor mask) {
    const int64_t TILE = 512;
    x = x.contiguous();
    mask = mask.contiguous();
    auto y = torch::empty_like(x);
    const int64_t n = x.size(1), tiles = n / TILE;
    for (int64_t r = 0; r < x.size(0); ++r) {
        const float* in = x.data_ptr<float>() + r * n;
        const bool* keep = mask.data_ptr<bool>() + r * n;
        float* out = y.data_ptr<float>() + r * n;
        double carry = 0;
        for (int64_t t = 0; t < tiles; ++t) {
            for (int64_t i = t * TILE; i < (t + 1) * TILE; ++i) {
                carry += keep[i] ? in[i] : 0.0f;
                out[i] = carry;
            }
        }
        double rest = 0;
        for (int64_t i = tiles * TILE; i < n; ++i) {
            rest += keep[i] ? in[i] : 0.0f;
            out[i] = rest;
        }
    }
    return y;
}
"""

tiled = load_inline(name="tiled_scan", cpp_sources=source, functions=["tiled_scan"], extra_cflags=["-O3", "-march=native"])


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x, mask):
        return tiled.tiled_scan(x, mask)
