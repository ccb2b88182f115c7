"""The oracle: NumPy, in float64. Gets the inputs in order and the dimensions by name."""


def reference(x, *, R, C):
    x = x.astype("float64")
    return (x * x).sum(axis=1)
