# answer: PyTorch, cumulative sums of blocks of 64 by a triangular matrix product, plus the blocks' offsets
# expect: ok
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.block = 64

    def forward(self, x, mask):
        t = (x * mask).movedim(self.dim, -1).double()  # float32 loses too much where a sum comes near zero
        n = t.shape[-1]
        t = F.pad(t, (0, -n % self.block)).unflatten(-1, (-1, self.block))
        upper = torch.ones(self.block, self.block, dtype=t.dtype).triu()
        inner = t @ upper
        offsets = F.pad(inner[..., -1].cumsum(dim=-1)[..., :-1], (1, 0))
        return (inner + offsets.unsqueeze(-1)).to(x.dtype).flatten(-2)[..., :n].movedim(-1, self.dim)
