"""Reference for the fp8_quant problem: what float8_e4m3fn then rounds to its nearest number."""

LARGEST = 448.0  # of float8_e4m3fn


def quantise(x, group):
    """Return x over the scale of its group, and the scales: the largest becomes 448."""
    groups = x.unflatten(1, (-1, group))
    scales = groups.abs().amax(dim=2).clamp_min(1e-10) / LARGEST
    return (groups / scales[:, :, None]).flatten(1), scales
