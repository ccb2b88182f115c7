"""Contract suites that every part passes, and fakes, for tests here and in plug-ins.

To test a plug-in, subclass its suite in a test file and say how to build the part:

    class TestMyPolicy(PolicyContract):
        def make(self) -> Policy:
            return MyPolicy()
"""

from kernelcast.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
