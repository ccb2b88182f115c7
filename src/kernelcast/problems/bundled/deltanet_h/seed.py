"""Seed for the deltanet_h problem: eager PyTorch, one chunk after the other."""

import torch

CHUNK = 64


def kernel(k, w, u, g, start):
    """Return the state before each chunk, and what each token adds."""
    k, w, u = (x.unflatten(1, (-1, CHUNK)).transpose(2, 3) for x in (k, w, u))
    g = g.unflatten(1, (-1, CHUNK)).transpose(2, 3)[..., None]
    state, before, added = start, [], []
    for chunk in range(k.shape[1]):
        before.append(state)
        values = u[:, chunk] - w[:, chunk] @ state
        added.append(values)
        last = g[:, chunk, :, -1:]
        state = state * torch.exp(last)
        state = state + k[:, chunk].mT @ (values * torch.exp(last - g[:, chunk]))
    values = torch.stack(added, dim=1).transpose(2, 3).flatten(1, 2)
    return torch.stack(before, dim=1), values
