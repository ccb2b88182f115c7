# answer: the product over k in bfloat16, as GPU MODE's tolerance would let it pass
# expect: wrong_result
import torch
from torch import nn


class ModelNew(nn.Module):
    """Update each pair (i, j) by the products of the pairs (i, k) and (j, k), over all k."""

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
        # As after training: with ones and zeros, a module could leave them out.
        for norm in (self.norm, self.out_norm):
            nn.init.normal_(norm.weight, 1.0, 0.3)
            nn.init.normal_(norm.bias, 0.0, 0.3)

    def forward(self, x, mask):
        """Return the update of x, with the pairs that the mask leaves out taken as zero."""
        x = self.norm(x)
        mask = mask[..., None]
        left = self.left(x) * torch.sigmoid(self.left_gate(x)) * mask
        right = self.right(x) * torch.sigmoid(self.right_gate(x)) * mask
        product = torch.einsum("bikh,bjkh->bijh", left.bfloat16(), right.bfloat16()).float()
        return self.out(self.out_norm(product) * torch.sigmoid(self.out_gate(x)))
