# answer: a query does not read the value of its own token: the triangle lacks its diagonal
# expect: wrong_result
import torch

CHUNK = 64


def kernel(q, k, values, states, g):
    q, k, values = (x.unflatten(1, (-1, CHUNK)).transpose(2, 3) for x in (q, k, values))
    g = g.unflatten(1, (-1, CHUNK)).transpose(2, 3)[..., None]
    scores = torch.tril((q @ k.mT) * torch.exp(g - g.mT), -1)
    out = (q * torch.exp(g)) @ states + scores @ values
    return (out * q.shape[-1] ** -0.5).transpose(2, 3).flatten(1, 2)
