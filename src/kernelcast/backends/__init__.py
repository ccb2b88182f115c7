"""Backends: they compile, verify and time kernels on a device."""

from kernelcast.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
