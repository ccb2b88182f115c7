"""Reference for the deltanet_h problem, one chunk after the other."""

import torch
from torch.nn import functional as F

CHUNK = 64


def states(k, w, u, g, start):
    """Return the state before each chunk, and what each token adds: u - w @ state."""
    state, before, added = start, [], []
    for first in range(0, k.shape[1], CHUNK):
        chunk = slice(first, first + CHUNK)
        before.append(state)
        values = u[:, chunk] - torch.einsum("bthk,bhkv->bthv", w[:, chunk], state)
        added.append(values)
        last = g[:, first + CHUNK - 1]
        decayed = values * torch.exp(last[:, None] - g[:, chunk])[..., None]
        state = state * torch.exp(last)[..., None, None]
        state = state + torch.einsum("bthk,bthv->bhkv", k[:, chunk], decayed)
    return torch.stack(before, dim=1), torch.cat(added, dim=1)


def inputs(B, N, H, K, V, seed):
    """Draw what deltanet_wu returns for random tokens; other w let the state grow without bound."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    k = F.normalize(normal(B, N, H, CHUNK, K), dim=-1)
    v = normal(B, N, H, CHUNK, V)
    beta = torch.sigmoid(normal(B, N, H, CHUNK, 1))
    g = F.logsigmoid(normal(B, N, H, CHUNK, 1) + 3.0).cumsum(dim=3)
    overlap = torch.tril(beta * (k @ k.mT) * torch.exp(g - g.mT), -1)
    wanted = torch.cat([beta * torch.exp(g) * k, beta * v], dim=-1)
    both = torch.linalg.solve_triangular(
        torch.eye(CHUNK) + overlap, wanted, upper=False, unitriangular=True
    )

    def by_token(x):
        return x.transpose(2, 3).flatten(1, 2).contiguous()

    w, u = by_token(both[..., :K]), by_token(both[..., K:])
    return by_token(k), w, u, by_token(g)[..., 0].contiguous(), normal(B, H, K, V)
