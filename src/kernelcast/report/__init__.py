"""Tables and figures of runs. They do not change a run."""

from kernelcast.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
