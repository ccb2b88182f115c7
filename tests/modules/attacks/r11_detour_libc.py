# attack: 11 the first bytes of libc's write are overwritten by a jump, through ctypes
# imitates: detours of the functions that the harness calls (seen: pygpubench)
# problem: softmax
# expect: compile_error
import ctypes

import torch
import torch.nn as nn

libc = ctypes.CDLL(None)
READ, WRITE, EXECUTE = 1, 2, 4


def detour(name):
    address = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value
    page = ctypes.c_void_p(address & ~4095)
    if libc.mprotect(page, ctypes.c_size_t(8192), READ | WRITE | EXECUTE) == 0:
        ctypes.memmove(address, b"\x48\x89\xd0\xc3", 4)  # mov rax, rdx; ret: all is written


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        detour("write")
        return torch.zeros_like(x)
