# answer: the inverse of I + A is taken for I - A, which drops what two earlier tokens share
# expect: wrong_result
import torch

CHUNK = 64


def kernel(k, v, beta, g):
    k, v = (x.unflatten(1, (-1, CHUNK)).transpose(2, 3) for x in (k, v))
    beta, g = (x.unflatten(1, (-1, CHUNK)).transpose(2, 3)[..., None] for x in (beta, g))
    overlap = torch.tril(beta * (k @ k.mT) * torch.exp(g - g.mT), -1)
    inverse = torch.eye(CHUNK, dtype=k.dtype, device=k.device) - overlap
    w = inverse @ (beta * torch.exp(g) * k)
    u = inverse @ (beta * v)
    return tuple(x.transpose(2, 3).flatten(1, 2) for x in (w, u))
