# answer: C++ for the epilogue only, into a new tensor; the product stays with nn.Linear
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

src = """
torch::Tensor clamp_residual(torch::Tensor x, float factor) {
    x = x.contiguous();
    auto y = torch::empty_like(x);
    const float* in = x.data_ptr<float>();
    float* __restrict out = y.data_ptr<float>();
    for (int64_t i = 0, n = x.numel(); i < n; ++i) {
        float s = in[i] * factor;
        s = s < -1.f ? -1.f : s;
        s = s > 1.f ? 1.f : s;
        out[i] = s + in[i];
    }
    return y;
}
"""


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, factor):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.factor = factor
        self.fused = load_inline(
            name="clamp_residual",
            cpp_sources=[src],
            functions=["clamp_residual"],
            extra_cflags=["-O3", "-march=native"],
        )

    def forward(self, x):
        return self.fused.clamp_residual(self.linear(x), float(self.factor))
