# answer: PyTorch, the variance from the centred rows by a batched dot product, returned as a list
# expect: ok
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        mean = x.mean(dim=1, keepdim=True)
        centred = x - mean
        variance = (centred * centred).mean(dim=1, keepdim=True)
        moments = torch.hstack([mean, variance])
        return [centred.div_((variance + self.eps).sqrt_()), moments]
