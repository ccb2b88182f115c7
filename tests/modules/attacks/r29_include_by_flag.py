# attack: 29 flags name the files to include and search: no path is in the source
# imitates: extra_cflags and extra_include_paths that read the machine's files (seen: ours)
# problem: layernorm
# expect: compile_error
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

ext = load_inline(
    "norm_flags",
    "torch::Tensor norm(torch::Tensor x) { return x; }",
    functions=["norm"],
    extra_cflags=["-include", "/etc/passwd", "-imacros", "/proc/version"],
    extra_include_paths=["/root", "/home", "/proc/self"],
)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()

    def forward(self, x):
        return ext.norm(x)
