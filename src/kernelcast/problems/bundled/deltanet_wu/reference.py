"""Reference for the deltanet_wu problem, token by token as the delta rule is defined.

Within a chunk, the state decays by exp(g) and each token replaces beta of what the state holds for
its key. u is what token t would write if the state were empty at the chunk's beginning, and w what
of that state it takes away: it writes u - w @ state.
"""

import torch
from torch.nn import functional as F

CHUNK = 64


def prepare(k, v, beta, g):
    """Return w and u: what each token writes, less what earlier tokens of its chunk wrote."""
    w, u = torch.empty_like(k), torch.empty_like(v)
    for start in range(0, k.shape[1], CHUNK):
        for t in range(start, start + CHUNK):
            past = slice(start, t)
            overlap = torch.einsum("bshk,bhk->bsh", k[:, past], k[:, t])
            overlap = overlap * torch.exp(g[:, t, None] - g[:, past])
            earlier_w = torch.einsum("bsh,bshk->bhk", overlap, w[:, past])
            earlier_u = torch.einsum("bsh,bshv->bhv", overlap, u[:, past])
            w[:, t] = beta[:, t, :, None] * (torch.exp(g[:, t, :, None]) * k[:, t] - earlier_w)
            u[:, t] = beta[:, t, :, None] * (v[:, t] - earlier_u)
    return w, u


def inputs(B, N, H, K, V, seed):
    """Draw keys of length 1, values, beta from 0 to 1, and the sums of log decays."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    k = F.normalize(normal(B, N * CHUNK, H, K), dim=-1)
    v = normal(B, N * CHUNK, H, V)
    beta = torch.sigmoid(normal(B, N * CHUNK, H))
    decay = F.logsigmoid(normal(B, N, CHUNK, H) + 3.0)
    return k, v, beta, decay.cumsum(dim=2).flatten(1, 2)
