"""Reference for the layernorm problem, in double precision."""

import numpy as np


def reference(x, gamma, beta, *, R, C):
    """Return each row normalised to zero mean and unit variance, scaled and shifted."""
    x = x.astype(np.float64)
    mean = x.mean(axis=1, keepdims=True)
    variance = x.var(axis=1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * gamma.astype(np.float64) + beta
