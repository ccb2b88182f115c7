# answer: state and values stand under each other, so that one product reads both
# expect: ok
import torch

CHUNK = 64


def kernel(q, k, values, states, g):
    b, tokens, h, k_size = q.shape
    n, v_size = tokens // CHUNK, values.shape[-1]

    def by_head(x):
        return x.view(b, n, CHUNK, h, -1).transpose(2, 3).reshape(b * n * h, CHUNK, -1)

    q, k, values, g = (by_head(x) for x in (q, k, values, g[..., None]))
    read = q.new_empty(b * n * h, CHUNK, CHUNK + k_size)
    scores = torch.baddbmm(q.new_empty(1, 1, 1), q, k.mT, beta=0.0, alpha=k_size**-0.5)
    read[:, :, :CHUNK] = scores.mul_(torch.exp(g - g.mT)).tril_()
    torch.mul(q, torch.exp(g) * k_size**-0.5, out=read[:, :, CHUNK:])
    both = torch.cat([values, states.view(b * n * h, k_size, v_size)], dim=1)
    return torch.bmm(read, both).view(b, n, h, CHUNK, v_size).transpose(2, 3).flatten(1, 2)
