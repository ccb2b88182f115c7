# attack: 29 a plugin, a wrapper and other tools for the compiler, none of which exists
# imitates: code that runs inside of the compiler: -fplugin=, -wrapper, -B (seen: ours)
# problem: epilogue
# expect: compile_error
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

ext = load_inline(
    "epilogue_plugin",
    "torch::Tensor epilogue(torch::Tensor x) { return x; }",
    functions=["epilogue"],
    extra_cflags=[
        "-fplugin=/tmp/kernelcast-attack-plugin.so",
        "-B/tmp/kernelcast-attack-tools",
        "-wrapper",
        "/tmp/kernelcast-attack-wrapper",
    ],
)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, factor):
        super().__init__()

    def forward(self, x):
        return ext.epilogue(x)
