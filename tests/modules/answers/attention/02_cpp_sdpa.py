# answer: C++ that calls ATen's scaled_dot_product_attention
# expect: ok
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

code = """
torch::Tensor sdpa(torch::Tensor q, torch::Tensor k, torch::Tensor v) {
    return at::scaled_dot_product_attention(q, k, v, c10::nullopt, 0.0, /*is_causal=*/true);
}
"""


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.ext = load_inline(name="causal_sdpa", cpp_sources=code, functions=["sdpa"])

    def forward(self, q, k, v):
        return self.ext.sdpa(q, k, v)
