# answer: C++, keeps 32 features at a time in registers while it walks through the bag; the rest one by one
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

_cpp = """
torch::Tensor mean_of_rows(const torch::Tensor& tokens, const torch::Tensor& weight) {
    const auto t = tokens.contiguous();
    const auto w = weight.contiguous();
    const int64_t B = t.size(0), L = t.size(1), F = w.size(1);
    auto result = torch::empty({B, F}, w.options());
    const int64_t* ids = t.data_ptr<int64_t>();
    const float* base = w.data_ptr<float>();
    for (int64_t b = 0; b < B; ++b, ids += L) {
        float* out = result.data_ptr<float>() + b * F;
        int64_t f = 0;
        for (; f + 32 <= F; f += 32) {
            float acc[32] = {};
            for (int64_t l = 0; l < L; ++l) {
                const float* row = base + ids[l] * F + f;
                for (int k = 0; k < 32; ++k) acc[k] += row[k];
            }
            for (int k = 0; k < 32; ++k) out[f + k] = acc[k] / L;
        }
        for (; f < F; ++f) {
            float acc = 0;
            for (int64_t l = 0; l < L; ++l) acc += base[ids[l] * F + f];
            out[f] = acc / L;
        }
    }
    return result;
}
"""


class ModelNew(nn.Module):
    def __init__(self, vocabulary, features):
        super().__init__()
        self.table = nn.Embedding(vocabulary, features)
        self._mod = load_inline(
            name="mean_of_rows", cpp_sources=[_cpp], functions=["mean_of_rows"], extra_cflags=["-O3", "-march=native"]
        )

    def forward(self, tokens):
        return self._mod.mean_of_rows(tokens, self.table.weight)
