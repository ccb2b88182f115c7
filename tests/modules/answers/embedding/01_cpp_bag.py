# answer: C++, adds the rows of a bag up in the output's row without gathering them first
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

bag_source = r"""
#include <torch/extension.h>
#include <cstring>

static void bag_mean(const int64_t* tok, int64_t length, const float* __restrict__ table, int64_t f, float* __restrict__ out) {
    std::memset(out, 0, f * sizeof(float));
    int64_t t = 0;
    for (; t + 4 <= length; t += 4) {
        const float* a = table + tok[t] * f;
        const float* b = table + tok[t + 1] * f;
        const float* c = table + tok[t + 2] * f;
        const float* d = table + tok[t + 3] * f;
        for (int64_t i = 0; i < f; ++i) out[i] += (a[i] + b[i]) + (c[i] + d[i]);
    }
    for (; t < length; ++t) {
        const float* a = table + tok[t] * f;
        for (int64_t i = 0; i < f; ++i) out[i] += a[i];
    }
    const float inv = 1.0f / (float)length;
    for (int64_t i = 0; i < f; ++i) out[i] *= inv;
}

torch::Tensor embedding_mean(torch::Tensor tokens_in, torch::Tensor table_in) {
    auto tokens = tokens_in.to(torch::kInt64).contiguous();
    auto table = table_in.contiguous();
    const int64_t bags = tokens.size(0), length = tokens.size(1), f = table.size(1);
    auto out = torch::empty({bags, f}, table.options());
    const int64_t* tp = tokens.data_ptr<int64_t>();
    const float* wp = table.data_ptr<float>();
    float* op = out.data_ptr<float>();
    at::parallel_for(0, bags, 4, [=](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b) bag_mean(tp + b * length, length, wp, f, op + b * f);
    });
    return out;
}
"""

bag_module = load_inline(
    name="embedding_mean_bag",
    cpp_sources=bag_source,
    functions=["embedding_mean"],
    extra_cflags=["-O3", "-march=native"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self, vocabulary, features):
        super().__init__()
        self.table = nn.Embedding(vocabulary, features)

    def forward(self, tokens):
        return bag_module.embedding_mean(tokens, self.table.weight)
