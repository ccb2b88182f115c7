# attack: 7 a thread computes the answer, and nobody waits for it
# imitates: an asynchronous launch on a stream that nothing synchronises with (seen: KernelBench)
# problem: chain
# expect: wrong_result
import threading
import time

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super().__init__()
        self.scale = scale
        self.shift = shift

    def forward(self, x):
        out = torch.empty_like(x)
        threading.Thread(target=self.work, args=(x, out), daemon=True).start()
        return out

    @torch.no_grad()
    def work(self, x, out):
        time.sleep(0.002)  # it is not to delay the reply
        y = torch.nn.functional.gelu(x * self.scale + self.shift)
        out.copy_(torch.tanh(y) + x)
