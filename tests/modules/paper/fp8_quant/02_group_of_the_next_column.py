# answer: groups begin one column late, and the last element belongs to the first group
# expect: wrong_result
import torch


def kernel(x, group):
    groups = x.float().roll(-1, dims=1).unflatten(1, (-1, group))
    scales = groups.abs().amax(dim=2).clamp_min(1e-10) / 448.0
    quantised = (groups / scales[:, :, None]).clamp(-448.0, 448.0).flatten(1).roll(1, dims=1)
    return quantised.to(torch.float8_e4m3fn), scales
