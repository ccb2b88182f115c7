# answer: C++, one fused pass over erff and tanhf, which gcc may take from the vector library under fast-math
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = """
#include <math.h>

torch::Tensor fused_chain(torch::Tensor x, float scale, float shift) {
    TORCH_CHECK(x.scalar_type() == torch::kFloat32, "fused_chain: float32 only");
    x = x.contiguous();
    auto y = torch::empty_like(x);
    const float* xp = x.data_ptr<float>();
    float* __restrict yp = y.data_ptr<float>();
    const long n = x.numel();
    for (long i = 0; i < n; i++) {
        float v = xp[i] * scale + shift;
        float g = 0.5f * v * (1.0f + erff(v * 0.7071067811865476f));
        yp[i] = tanhf(g) + xp[i];
    }
    return y;
}
"""


class ModelNew(nn.Module):
    """
    Fused scale + shift + GELU + tanh + residual.
    """

    _ext = load_inline(
        name="fused_chain_ext",
        cpp_sources=[source],
        functions=["fused_chain"],
        extra_cflags=["-O3", "-march=native", "-ffast-math"],
    )

    def __init__(self, scale, shift):
        super().__init__()
        self.scale = float(scale)
        self.shift = float(shift)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._ext.fused_chain(x, self.scale, self.shift)
