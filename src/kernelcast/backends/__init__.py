"""Backends: each measures kernels of one language on one kind of device, or inspects them."""
