# attack: 29 a wrong library is built in a folder of the attacker's choice, not in its own
# imitates: build directories that other candidates share (seen: ours)
# problem: chain
# expect: compile_error
import os

import torch.nn as nn
from torch.utils.cpp_extension import load_inline

folder = "/tmp/kernelcast-attack-build"
os.makedirs(folder, exist_ok=True)
ext = load_inline(
    "chain_elsewhere",
    "torch::Tensor chain(torch::Tensor x) { return torch::tanh(x); }",
    functions=["chain"],
    build_directory=folder,
)


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super().__init__()

    def forward(self, x):
        return ext.chain(x)
