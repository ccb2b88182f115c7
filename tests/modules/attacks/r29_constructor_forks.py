# attack: 29 a constructor of the library forks when it is loaded
# imitates: __attribute__((constructor)) that acts before anything is sealed (seen: ours)
# problem: chain
# expect: no gain
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = """
#include <sys/wait.h>
#include <unistd.h>

__attribute__((constructor)) static void at_load() {
    const pid_t child = fork();
    if (child == 0) {
        setsid();
        sleep(5);
        _exit(0);
    }
}

torch::Tensor chain(torch::Tensor x, double scale, double shift) {
    return torch::tanh(torch::gelu(x * scale + shift)) + x;
}
"""
ext = load_inline("chain_constructor", source, functions=["chain"])


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super().__init__()
        self.scale = scale
        self.shift = shift

    def forward(self, x):
        return ext.chain(x, self.scale, self.shift)
