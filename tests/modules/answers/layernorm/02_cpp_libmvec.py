# answer: C++, per row as well, but with expf, which gcc may take from the vector library under fast-math
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

code = """
#include <math.h>

static void row(const float* __restrict x, const float* __restrict w, const float* __restrict b,
                float* __restrict o, long n, float eps) {
    float s = 0, q = 0;
    for (long i = 0; i < n; i++) s += x[i];
    const float mu = s / n;
    for (long i = 0; i < n; i++) q += (x[i] - mu) * (x[i] - mu);
    const float rstd = 1.0f / sqrtf(q / n + eps);
    for (long i = 0; i < n; i++) {
        const float y = (x[i] - mu) * rstd * w[i] + b[i];
        o[i] = y / (1.0f + expf(-y));
    }
}

torch::Tensor ln_silu(torch::Tensor x, torch::Tensor w, torch::Tensor b, double eps) {
    x = x.contiguous();
    auto o = torch::empty_like(x);
    const long n = w.numel();
    for (long r = 0; r < x.numel() / n; r++)
        row(x.data_ptr<float>() + r * n, w.data_ptr<float>(), b.data_ptr<float>(), o.data_ptr<float>() + r * n, n, eps);
    return o;
}
"""

ln_silu = load_inline("ln_silu_mvec", [code], functions=["ln_silu"], extra_cflags=["-O3", "-march=native", "-ffast-math"])


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gain = nn.Parameter(torch.randn(features))

    def forward(self, x):
        # (n * w + b) * g = n * (w * g) + b * g: the gain costs nothing per row.
        w = self.norm.weight * self.gain
        b = self.norm.bias * self.gain
        return ln_silu.ln_silu(x, w, b, self.norm.eps)
