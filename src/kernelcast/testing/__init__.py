"""Contract suites that every part passes, and fakes, for tests here and in plug-ins.

A plug-in author subclasses a suite in a test file and says how to build the part:

    class TestMyPolicy(PolicyContract):
        def make(self) -> Policy:
            return MyPolicy()
"""

from kernelcast.testing.contracts import (
    BackendContract,
    FarmContract,
    ForecasterContract,
    PolicyContract,
    ProposerContract,
    StoreContract,
    StrategyContract,
)
from kernelcast.testing.fakes import (
    FAKE_DEVICE,
    BrokenBackend,
    RendezvousBackend,
    SyntheticBackend,
    example_history,
    make_candidate,
    make_kernel,
    make_query,
    make_request,
    make_view,
    synthetic_kernels,
    synthetic_problem,
)

__all__ = [
    "FAKE_DEVICE",
    "BackendContract",
    "BrokenBackend",
    "FarmContract",
    "ForecasterContract",
    "PolicyContract",
    "ProposerContract",
    "RendezvousBackend",
    "StoreContract",
    "StrategyContract",
    "SyntheticBackend",
    "example_history",
    "make_candidate",
    "make_kernel",
    "make_query",
    "make_request",
    "make_view",
    "synthetic_kernels",
    "synthetic_problem",
]
