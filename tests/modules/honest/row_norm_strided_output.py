# honest: the output is a column of the module's own, larger result: not contiguous
# problem: row_norm
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x, y):
        d = torch.sub(x, y)
        both = torch.empty(x.shape[0], 2, dtype=x.dtype, device=x.device)
        both[:, 0] = torch.einsum("ij,ij->i", d, d)
        torch.sqrt(both[:, 0], out=both[:, 1])
        return both[:, 1]
