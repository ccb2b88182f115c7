# answer: C++ with accumulators in double and std::exp, not vectorised; slower
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gain = nn.Parameter(torch.randn(features))
        self.op = load_inline(
            name="layernorm_scalar",
            cpp_sources=self.source(),
            functions=["layernorm_scalar"],
            extra_cflags=["-O3"],
        )

    @staticmethod
    def source():
        return """
        torch::Tensor layernorm_scalar(torch::Tensor x, torch::Tensor w, torch::Tensor b, torch::Tensor g, double eps) {
            auto flat = x.contiguous().view({-1, x.size(-1)});
            auto out = torch::empty_like(flat);
            auto a = flat.accessor<float, 2>();
            auto o = out.accessor<float, 2>();
            const float *wp = w.data_ptr<float>(), *bp = b.data_ptr<float>(), *gp = g.data_ptr<float>();
            const int64_t n = flat.size(1);
            for (int64_t r = 0; r < flat.size(0); ++r) {
                double mean = 0, var = 0;
                for (int64_t i = 0; i < n; ++i) mean += a[r][i];
                mean /= n;
                for (int64_t i = 0; i < n; ++i) var += (a[r][i] - mean) * (a[r][i] - mean);
                const double rstd = 1.0 / std::sqrt(var / n + eps);
                for (int64_t i = 0; i < n; ++i) {
                    const double y = ((a[r][i] - mean) * rstd * wp[i] + bp[i]) * gp[i];
                    o[r][i] = (float)(y / (1.0 + std::exp(-y)));
                }
            }
            return out.view(x.sizes());
        }
        """

    def forward(self, x):
        return self.op.layernorm_scalar(x, self.norm.weight, self.norm.bias, self.gain, self.norm.eps)
