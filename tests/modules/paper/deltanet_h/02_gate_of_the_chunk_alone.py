# answer: the state decays by chunk, but what its tokens add does not decay to the chunk's end
# expect: wrong_result
import torch

CHUNK = 64


def kernel(k, w, u, g, start):
    k, w, u = (x.unflatten(1, (-1, CHUNK)).transpose(2, 3) for x in (k, w, u))
    g = g.unflatten(1, (-1, CHUNK)).transpose(2, 3)[..., None]
    state, before, added = start, [], []
    for chunk in range(k.shape[1]):
        before.append(state)
        values = u[:, chunk] - w[:, chunk] @ state
        added.append(values)
        state = state * torch.exp(g[:, chunk, :, -1:]) + k[:, chunk].mT @ values
    values = torch.stack(added, dim=1).transpose(2, 3).flatten(1, 2)
    return torch.stack(before, dim=1), values
