"""Seed for the deltanet_wu problem: eager PyTorch, a triangular system a chunk."""

import torch

CHUNK = 64


def kernel(k, v, beta, g):
    """Return w and u."""
    k, v = (x.unflatten(1, (-1, CHUNK)).transpose(2, 3) for x in (k, v))
    beta, g = (x.unflatten(1, (-1, CHUNK)).transpose(2, 3)[..., None] for x in (beta, g))
    decay = torch.exp(g - g.mT)
    overlap = torch.tril(beta * (k @ k.mT) * decay, -1)
    identity = torch.eye(CHUNK, dtype=k.dtype, device=k.device)
    wanted = torch.cat([beta * torch.exp(g) * k, beta * v], dim=-1)
    both = torch.linalg.solve_triangular(identity + overlap, wanted, upper=False)
    both = both.transpose(2, 3).flatten(1, 2)
    return both[..., : k.shape[-1]].contiguous(), both[..., k.shape[-1] :].contiguous()
