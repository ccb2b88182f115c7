# answer: keeps the last outputs, and gives them again while the input lies at the same address
# expect: wrong_result
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.last_pointer = None
        self.last_result = None

    def compute(self, x):
        variance, mean = torch.var_mean(x, dim=1, keepdim=True, correction=0)
        return (x - mean) / torch.sqrt(variance + self.eps), torch.cat((mean, variance), dim=1)

    def forward(self, x):
        # Benchmarks call the model many times with the same tensor.
        pointer = (x.data_ptr(), tuple(x.shape), x.stride())
        if pointer != self.last_pointer:
            self.last_result = self.compute(x)
            self.last_pointer = pointer
        return self.last_result
