# answer: C++ that walks through the scores with one pointer per head, of which the last is null: segmentation fault
# expect: crash
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = """
#include <vector>

torch::Tensor attention_by_head(torch::Tensor q, torch::Tensor k, torch::Tensor v) {
    auto scores = at::matmul(q, k.transpose(-2, -1)).div_(std::sqrt((double)q.size(-1))).contiguous();
    const int64_t L = q.size(-2), n = scores.numel() / (L * L);
    std::vector<float*> heads(n + 1, nullptr);
    for (int64_t h = 0; h < n; ++h) heads[h] = scores.data_ptr<float>() + h * L * L;
    for (int64_t h = 0; h <= n; ++h)
        for (int64_t i = 0; i < L; ++i)
            for (int64_t j = i + 1; j < L; ++j) const_cast<volatile float*>(heads[h])[i * L + j] = -INFINITY;
    return at::matmul(scores.softmax(-1), v);
}
"""

by_head = load_inline(
    name="attention_by_head", cpp_sources=source, functions=["attention_by_head"], extra_cflags=["-O3", "-march=native"]
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, q, k, v):
        return by_head.attention_by_head(q, k, v)
