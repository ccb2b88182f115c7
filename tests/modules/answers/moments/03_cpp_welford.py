# answer: C++, Welford's running mean and variance in double, one element after the other; slower
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

welford_source = """
std::vector<torch::Tensor> welford(torch::Tensor x, double eps) {
    auto rows = x.size(0), cols = x.size(1);
    auto xc = x.contiguous();
    auto a = xc.accessor<float, 2>();
    auto z = torch::empty({rows, cols}, x.options());
    auto m = torch::empty({rows, 2}, x.options());
    auto za = z.accessor<float, 2>();
    auto ma = m.accessor<float, 2>();
    for (int64_t i = 0; i < rows; i++) {
        double mean = 0, m2 = 0;
        for (int64_t j = 0; j < cols; j++) {
            double delta = a[i][j] - mean;
            mean += delta / (j + 1);
            m2 += delta * (a[i][j] - mean);
        }
        double var = m2 / cols;
        double rstd = 1.0 / std::sqrt(var + eps);
        for (int64_t j = 0; j < cols; j++) za[i][j] = (a[i][j] - mean) * rstd;
        ma[i][0] = mean;
        ma[i][1] = var;
    }
    return {z, m};
}
"""


class ModelNew(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.ext = load_inline(
            name="welford_ext", cpp_sources=welford_source, functions=["welford"], extra_cflags=["-O3"]
        )

    def forward(self, x):
        return tuple(self.ext.welford(x, self.eps))
