# attack: 34 what a service could seal itself by is replaced at import: ctypes, prctl, resource. As its
#   text mentions torch.compile, it is imported while it may still compile; then it forks
# imitates: the function that installs the seal is patched (seen: pygpubench)
# problem: chain
# expect: crash
import ctypes
import os
import resource

import torch
import torch.nn as nn

compiled = torch.compile
real = ctypes.CDLL(None)


class Library:
    def __init__(self, *_, **__):
        pass

    def __getattr__(self, name):
        if name in ("prctl", "syscall", "seccomp", "setrlimit", "close_range"):
            return lambda *_: 0
        return getattr(real, name)


ctypes.CDLL = ctypes.PyDLL = Library
resource.setrlimit = lambda *_: None


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super().__init__()
        self.scale = scale
        self.shift = shift

    def forward(self, x):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        return torch.tanh(torch.nn.functional.gelu(x * self.scale + self.shift)) + x
