"""Farms: they run measurements on device slots."""

from kernelcast.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
