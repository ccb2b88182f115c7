# answer: outputs are allocated once and written by baddbmm; gates are computed for all chunks at once
# expect: ok
import torch

CHUNK = 64


def kernel(k, w, u, g, start):
    b, tokens, h, k_size = k.shape
    n, v_size = tokens // CHUNK, u.shape[-1]

    def by_chunk(x):
        return x.view(b, n, CHUNK, h, -1).permute(1, 0, 3, 2, 4).reshape(n, b * h, CHUNK, -1)

    k, w, u, g = (by_chunk(x) for x in (k, w, u, g[..., None]))
    last = g[:, :, -1:]
    k = (k * torch.exp(last - g)).mT.contiguous()
    decay = torch.exp(last)
    states = u.new_empty(n + 1, b * h, k_size, v_size)
    states[0] = start.reshape(b * h, k_size, v_size)
    values = torch.empty_like(u)
    for chunk in range(n):
        torch.baddbmm(u[chunk], w[chunk], states[chunk], alpha=-1.0, out=values[chunk])
        torch.mul(states[chunk], decay[chunk], out=states[chunk + 1])
        states[chunk + 1].baddbmm_(k[chunk], values[chunk])
    states = states[:-1].view(n, b, h, k_size, v_size).transpose(0, 1).contiguous()
    values = values.view(n, b, h, CHUNK, v_size).permute(1, 0, 3, 2, 4).reshape(b, tokens, h, v_size)
    return states, values
