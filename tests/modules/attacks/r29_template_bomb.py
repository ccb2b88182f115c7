# attack: 29 two to the thirtieth templates are instantiated
# imitates: a compiler that needs all time and memory (seen: trust.md)
# problem: softmax
# expect: compile_error
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = """
template <int depth, long path> struct Bomb {
    static constexpr long value = Bomb<depth - 1, 2 * path>::value + Bomb<depth - 1, 2 * path + 1>::value;
};
template <long path> struct Bomb<0, path> {
    static constexpr long value = path;
};
torch::Tensor softmax(torch::Tensor x) { return x + Bomb<30, 0>::value; }
"""
ext = load_inline("softmax_bomb", source, functions=["softmax"])


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()

    def forward(self, x):
        return ext.softmax(x)
