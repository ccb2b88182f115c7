# honest: Triton where there is a device and a Triton; PyTorch otherwise
# problem: softmax
import torch
import torch.nn as nn

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

if triton is not None:

    @triton.jit
    def softmax_kernel(x, out, columns, temperature, BLOCK: tl.constexpr):
        row, j = tl.program_id(0), tl.arange(0, BLOCK)
        values = tl.load(x + row * columns + j, mask=j < columns, other=-float("inf"))
        values = tl.exp((values - tl.max(values, axis=0)) / temperature)
        tl.store(out + row * columns + j, values / tl.sum(values, axis=0), mask=j < columns)


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        if triton is not None and torch.cuda.is_available() and x.is_cuda:
            x = x.contiguous()
            out = torch.empty_like(x)
            block = triton.next_power_of_2(x.shape[1])
            softmax_kernel[(x.shape[0],)](x, out, x.shape[1], self.temperature, BLOCK=block)
            return out
        return torch.softmax(x * (1.0 / self.temperature), dim=-1)
