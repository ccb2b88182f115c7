"""Forecasters: they predict a kernel's speedup and its chance of failure."""

from kernelcast.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
