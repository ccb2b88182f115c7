# answer: C++, a compensated (Kahan) sum per row; very precise, one addition after the other, slower
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

kahan_source = """
torch::Tensor kahan_norm(torch::Tensor x, torch::Tensor y) {
    auto xc = x.contiguous();
    auto yc = y.contiguous();
    auto out = torch::zeros({xc.size(0)}, xc.options());
    auto xa = xc.accessor<float, 2>();
    auto ya = yc.accessor<float, 2>();
    auto oa = out.accessor<float, 1>();
    for (int64_t i = 0; i < xa.size(0); ++i) {
        float sum = 0.0f, c = 0.0f;
        for (int64_t j = 0; j < xa.size(1); ++j) {
            float d = xa[i][j] - ya[i][j];
            float term = d * d - c;
            float t = sum + term;
            c = (t - sum) - term;
            sum = t;
        }
        oa[i] = std::sqrt(sum);
    }
    return out;
}
"""

kahan = load_inline("kahan_norm_ext", cpp_sources=[kahan_source], functions=["kahan_norm"], extra_cflags=["-O3"])


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kahan = kahan

    def forward(self, x, y):
        return self.kahan.kahan_norm(x, y)
