# attack: 9 a tensor subclass that fills itself in __torch_function__, at its first use
# imitates: a lazy tensor subclass (seen: KernelBench, SOL-ExecBench)
# problem: row_norm
# expect: no gain
import torch
import torch.nn as nn


class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            for each in args:
                if isinstance(each, Lazy) and each.__dict__.get("work") is not None:
                    work = each.__dict__["work"]
                    each.__dict__["work"] = None
                    each.data.copy_(work())
            return func(*args, **(kwargs or {}))


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty(x.shape[0]).as_subclass(Lazy)
        out.__dict__["work"] = lambda: torch.sqrt(((x - y) ** 2).sum(dim=1))
        return out
