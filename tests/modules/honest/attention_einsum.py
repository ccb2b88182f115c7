# honest: einsum, one head at a time, stacked at the end
# problem: attention
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        length = q.size(2)
        above = torch.ones(length, length, dtype=torch.bool, device=q.device).triu_(1)
        heads = []
        for h in range(q.size(1)):
            scores = torch.einsum("bid,bjd->bij", q[:, h], k[:, h]).div_(q.size(3) ** 0.5)
            scores = scores.masked_fill_(above, float("-inf"))
            heads.append(torch.einsum("bij,bjd->bid", torch.softmax(scores, dim=2), v[:, h]))
        return torch.stack(heads, dim=1)
