# attack: 10 synchronise is replaced by nothing, and the work left to a thread
# imitates: torch.cuda.synchronize = lambda: None (seen: KernelBench)
# problem: softmax
# expect: wrong_result
import threading

import torch
import torch.nn as nn

waits = threading.Event()
torch.cuda.synchronize = torch.cpu.synchronize = lambda *_: None
threading.Thread.join = lambda *_: None
torch.cuda.Stream.synchronize = torch.cuda.Event.synchronize = lambda *_: None


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    @torch.no_grad()
    def work(self, x, out):
        waits.wait(0.002)
        torch.softmax(x / self.temperature, dim=-1, out=out)

    def forward(self, x):
        out = torch.zeros_like(x)
        thread = threading.Thread(target=self.work, args=(x, out), daemon=True)
        thread.start()
        thread.join()
        torch.cpu.synchronize()
        return out
