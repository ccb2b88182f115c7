# answer: C++ that gathers the moments in double for precision and returns the second output as double
# expect: wrong_result
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = """
std::vector<torch::Tensor> precise_moments(torch::Tensor x, double eps) {
    x = x.contiguous();
    auto z = torch::empty_like(x);
    auto m = torch::empty({x.size(0), 2}, x.options().dtype(torch::kDouble));
    const int64_t n = x.size(1);
    for (int64_t r = 0; r < x.size(0); ++r) {
        const float* p = x.data_ptr<float>() + r * n;
        double s = 0, q = 0;
        for (int64_t i = 0; i < n; ++i) s += p[i];
        s /= n;
        for (int64_t i = 0; i < n; ++i) q += (p[i] - s) * (p[i] - s);
        q /= n;
        for (int64_t i = 0; i < n; ++i) z.data_ptr<float>()[r * n + i] = (p[i] - s) / std::sqrt(q + eps);
        m.data_ptr<double>()[2 * r] = s;
        m.data_ptr<double>()[2 * r + 1] = q;
    }
    return {z, m};
}
"""
precise = load_inline(
    name="precise_moments", cpp_sources=source, functions=["precise_moments"], extra_cflags=["-O3", "-march=native"]
)


class ModelNew(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        z, m = precise.precise_moments(x, self.eps)
        return z, m
