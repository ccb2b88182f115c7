# answer: C++ that writes whole blocks of sixteen features and leaves the rest of torch::empty as it was
# expect: wrong_result
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = """
torch::Tensor bag16(torch::Tensor tokens, torch::Tensor table) {
    tokens = tokens.contiguous();
    const int64_t B = tokens.size(0), L = tokens.size(1), F = table.size(1);
    auto out = torch::empty({B, F}, table.options());
    for (int64_t b = 0; b < B; ++b) {
        for (int64_t block = 0; block < F / 16; ++block) {
            float acc[16] = {0};
            for (int64_t l = 0; l < L; ++l) {
                const float* row = table.data_ptr<float>() + tokens.data_ptr<int64_t>()[b * L + l] * F + block * 16;
                for (int k = 0; k < 16; ++k) acc[k] += row[k];
            }
            for (int k = 0; k < 16; ++k) out.data_ptr<float>()[b * F + block * 16 + k] = acc[k] / L;
        }
    }
    return out;
}
"""

bag16 = load_inline(name="bag16", cpp_sources=source, functions=["bag16"], extra_cflags=["-O3", "-march=native"])


class ModelNew(nn.Module):
    def __init__(self, vocabulary, features):
        super().__init__()
        self.table = nn.Embedding(vocabulary, features)

    def forward(self, tokens):
        return bag16.bag16(tokens, self.table.weight)
