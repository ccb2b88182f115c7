# answer: a product by the reciprocal of the scale, in place; no clamp, since 448 is the largest
# expect: ok
import torch


def kernel(x, group):
    groups = x.unflatten(1, (-1, group))
    low, high = torch.aminmax(groups, dim=2)
    largest = torch.maximum(high, -low).float().clamp_min_(1e-10)
    wide = groups.float().mul_((448.0 / largest)[:, :, None])
    return wide.flatten(1).to(torch.float8_e4m3fn), largest / 448.0
