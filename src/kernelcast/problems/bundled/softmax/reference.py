"""Reference for the softmax problem, in double precision."""

import numpy as np


def reference(x, *, R, C):
    """Return softmax over the columns of each row."""
    x = x.astype(np.float64)
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)
