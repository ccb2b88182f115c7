"""Reference for the deltanet_o problem."""

import torch
from torch.nn import functional as F

CHUNK = 64


def output(q, k, values, states, g):
    """Return what each query reads: the decayed state, and the values up to its own token."""
    q, k, values, g = (x.unflatten(1, (-1, CHUNK)) for x in (q, k, values, g))
    from_state = torch.einsum("bnthk,bnhkv->bnthv", q * torch.exp(g)[..., None], states)
    scores = torch.einsum("bnthk,bnshk->bnhts", q, k)
    decay = torch.exp(g[:, :, :, None] - g[:, :, None]).permute(0, 1, 4, 2, 3)
    scores = torch.tril(scores * decay)
    out = from_state + torch.einsum("bnhts,bnshv->bnthv", scores, values)
    return out.flatten(1, 2) * q.shape[-1] ** -0.5


def inputs(B, N, H, K, V, seed):
    """Draw queries and keys of length 1, values, states, and the sums of log decays."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    q, k = (F.normalize(normal(B, N * CHUNK, H, K), dim=-1) for _ in range(2))
    values, states = normal(B, N * CHUNK, H, V), normal(B, N, H, K, V)
    decay = F.logsigmoid(normal(B, N, CHUNK, H) + 3.0)
    return q, k, values, states, decay.cumsum(dim=2).flatten(1, 2)
