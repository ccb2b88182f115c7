# answer: the inverse of the unit triangle by six doublings, products of matrices alone
# expect: ok
import torch

CHUNK = 64


def kernel(k, v, beta, g):
    k, v = (x.unflatten(1, (-1, CHUNK)).transpose(2, 3).contiguous() for x in (k, v))
    beta, g = (x.unflatten(1, (-1, CHUNK)).transpose(2, 3)[..., None] for x in (beta, g))
    # (I + A)^-1 = (I - A)(I + A^2)(I + A^4)..., since A^64 is zero.
    power = torch.tril(beta * (k @ k.mT) * torch.exp(g - g.mT), -1).neg_()
    inverse = power + torch.eye(CHUNK, dtype=k.dtype, device=k.device)
    for _ in range(5):
        power = power @ power
        inverse = inverse + inverse @ power
    w = inverse @ (beta * torch.exp(g) * k)
    u = inverse @ (beta * v)
    return tuple(x.transpose(2, 3).flatten(1, 2) for x in (w, u))
