# honest: an autograd.Function with a backward that nobody calls
# problem: chain
import torch
import torch.nn as nn


class Chain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, shift):
        ctx.save_for_backward(x)
        ctx.scale, ctx.shift = scale, shift
        return torch.tanh(torch.nn.functional.gelu(x * scale + shift)) + x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = torch.tanh(torch.nn.functional.gelu(x * ctx.scale + ctx.shift)) + x
            (result,) = torch.autograd.grad(y, x, gradient)
        return result, None, None


class ModelNew(nn.Module):
    def __init__(self, scale, shift):
        super().__init__()
        self.scale = scale
        self.shift = shift

    def forward(self, x):
        return Chain.apply(x, self.scale, self.shift)
