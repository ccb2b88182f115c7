import numpy as np


def reference(x, *, N):
    return 2.0 * x.astype(np.float64)
