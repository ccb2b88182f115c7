# answer: C++ that only calls ATen: index_select, view and mean
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cpp_source = """
torch::Tensor gather_mean(torch::Tensor tokens, torch::Tensor table) {
    auto rows = table.index_select(0, tokens.reshape(-1));
    return rows.view({tokens.size(0), tokens.size(1), table.size(1)}).mean(1);
}
"""
gather_mean = load_inline(name="gather_mean", cpp_sources=cpp_source, functions=["gather_mean"])


class ModelNew(nn.Module):
    def __init__(self, vocabulary, features):
        super().__init__()
        self.table = nn.Embedding(vocabulary, features)
        self.gather_mean = gather_mean.gather_mean

    def forward(self, tokens):
        return self.gather_mean(tokens, self.table.weight)
