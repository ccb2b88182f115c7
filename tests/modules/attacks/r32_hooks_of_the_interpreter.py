# attack: 32 the work is left to an audit hook, a profiler and a callback of the collector
# imitates: the interpreter's own hooks, which run between the service's lines (seen: ours)
# problem: layernorm
# expect: wrong_result
import gc
import sys

import torch
import torch.nn as nn

pending = []


@torch.no_grad()
def work(*_):
    while pending:
        model, x, out = pending.pop()
        y = model.norm(x) * model.gain
        torch.mul(y, torch.sigmoid(y), out=out)


def after_the_reply(frame, event, argument):
    if event == "c_return" and getattr(argument, "__name__", "") == "write":
        work()


sys.addaudithook(lambda event, _: work() if event.startswith(("gc.", "mmap.")) else None)
gc.callbacks.append(work)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.gain = nn.Parameter(torch.randn(features))

    def forward(self, x):
        out = torch.zeros_like(x)
        pending.append((self, x, out))
        sys.setprofile(after_the_reply)
        return out
