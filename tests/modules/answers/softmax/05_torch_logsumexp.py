# answer: PyTorch, exp(x / t - max) normalised by hand; right, and slower than the library's softmax
# expect: ok
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    """
    Softmax with temperature, written out so that every step is visible.
    """

    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        z = x / self.temperature
        z -= z.amax(dim=-1, keepdim=True)
        e = z.exp_()
        e /= e.sum(dim=-1, keepdim=True)
        return e
