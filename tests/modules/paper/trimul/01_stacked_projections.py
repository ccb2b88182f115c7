# answer: the five projections of x as one product, and the product over k as one of matrices
# expect: ok
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.left = nn.Linear(dim, hidden, bias=False)
        self.right = nn.Linear(dim, hidden, bias=False)
        self.left_gate = nn.Linear(dim, hidden, bias=False)
        self.right_gate = nn.Linear(dim, hidden, bias=False)
        self.out_gate = nn.Linear(dim, hidden, bias=False)
        self.out_norm = nn.LayerNorm(hidden)
        self.out = nn.Linear(hidden, dim, bias=False)
        self.stacked = None

    def forward(self, x, mask):
        if self.stacked is None:
            gates = (self.left_gate, self.right_gate, self.out_gate)
            self.stacked = torch.cat([each.weight for each in (self.left, self.right, *gates)])
        b, n, _, _ = x.shape
        both = F.linear(self.norm(x), self.stacked)
        hidden = both.shape[-1] // 5
        values, gates = both[..., : 2 * hidden], both[..., 2 * hidden :].sigmoid_()
        values = values.mul_(gates[..., : 2 * hidden]).mul_(mask[..., None])
        planes = values.permute(0, 3, 1, 2).contiguous()  # left, right: a matrix i x k a channel
        product = planes[:, :hidden] @ planes[:, hidden:].mT
        product = product.permute(0, 2, 3, 1)
        return self.out(self.out_norm(product).mul_(gates[..., 2 * hidden :]))
