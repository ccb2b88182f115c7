"""Seed for the fp8_quant problem: eager PyTorch, in float32."""

import torch

LARGEST = 448.0  # of float8_e4m3fn


def kernel(x, group):
    """Return float8 and the scale of each group."""
    groups = x.float().unflatten(1, (-1, group))
    scales = groups.abs().amax(dim=2).clamp_min(1e-10) / LARGEST
    quantised = (groups / scales[:, :, None]).clamp(-LARGEST, LARGEST)
    return quantised.flatten(1).to(torch.float8_e4m3fn), scales
