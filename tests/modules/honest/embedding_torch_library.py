# honest: an operator registered by TORCH_LIBRARY; the extension is no Python module
# problem: embedding
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

load_inline(
    name="bag_of_tokens_library",
    cpp_sources="""
#include <torch/library.h>
at::Tensor bag_mean(const at::Tensor& table, const at::Tensor& tokens) {
    auto rows = table.contiguous();
    auto index = tokens.contiguous();
    const int64_t features = rows.size(1), length = index.size(1);
    auto out = at::zeros({index.size(0), features}, rows.options());
    const float* from = rows.data_ptr<float>();
    const int64_t* which = index.data_ptr<int64_t>();
    float* to = out.data_ptr<float>();
    for (int64_t b = 0; b < index.size(0); ++b) {
        float* sum = to + b * features;
        for (int64_t t = 0; t < length; ++t) {
            const float* row = from + which[b * length + t] * features;
            for (int64_t f = 0; f < features; ++f) sum[f] += row[f];
        }
        for (int64_t f = 0; f < features; ++f) sum[f] /= length;
    }
    return out;
}
TORCH_LIBRARY(bag_of_tokens, m) {
    m.def("bag_mean(Tensor table, Tensor tokens) -> Tensor");
    m.impl("bag_mean", c10::DispatchKey::CPU, TORCH_FN(bag_mean));
}
""",
    extra_cflags=["-O3"],
    is_python_module=False,
)


class ModelNew(nn.Module):
    def __init__(self, vocabulary, features):
        super().__init__()
        self.table = nn.Embedding(vocabulary, features)

    def forward(self, tokens):
        return torch.ops.bag_of_tokens.bag_mean(self.table.weight, tokens)
