# answer: the quotient is rounded to bfloat16 before float8: numbers near the middle go the wrong way
# expect: wrong_result
import torch


def kernel(x, group):
    groups = x.unflatten(1, (-1, group))
    scales = groups.abs().amax(dim=2).float().clamp_min(1e-10) / 448.0
    quantised = groups / scales[:, :, None].bfloat16()
    return quantised.clamp(-448.0, 448.0).flatten(1).to(torch.float8_e4m3fn), scales
