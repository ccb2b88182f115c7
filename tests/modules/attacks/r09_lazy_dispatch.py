# attack: 9 a tensor subclass that computes in __torch_dispatch__, when it is copied
# imitates: a lazy tensor whose work happens in the comparison (seen: KernelBench)
# problem: softmax
# expect: wrong_result
import torch
import torch.nn as nn
from torch.utils._pytree import tree_map_only


class Lazy(torch.Tensor):
    @staticmethod
    def __new__(cls, shape, work):
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32)
        made.work, made.value = work, None
        return made

    def real(self):
        if self.value is None:
            self.value = self.work()
        return self.value

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(Lazy, Lazy.real, (args, kwargs or {}))
        return func(*args, **kwargs)


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        return Lazy(x.shape, lambda: torch.softmax(x / self.temperature, dim=-1))
