"""kernelcast: find faster kernels with fewer hardware measurements."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelcast.bins import DEFAULT_BINS, PAPER_BINS, Bins
    from kernelcast.distribution import Distribution
    from kernelcast.errors import KernelcastError
    from kernelcast.events import RunSpec
    from kernelcast.parts import Parts
    from kernelcast.problems import bundled_problems, load_problem
    from kernelcast.protocols import Backend, Farm, Forecaster, Policy, Proposer, Strategy
    from kernelcast.search import Result, Search
    from kernelcast.store import Store
    from kernelcast.types import (
        Budget,
        Decision,
        Device,
        Evidence,
        Forecast,
        Kernel,
        Measurement,
        Problem,
    )

__all__ = [
    "DEFAULT_BINS",
    "PAPER_BINS",
    "Backend",
    "Bins",
    "Budget",
    "Decision",
    "Device",
    "Distribution",
    "Evidence",
    "Farm",
    "Forecast",
    "Forecaster",
    "Kernel",
    "KernelcastError",
    "Measurement",
    "Parts",
    "Policy",
    "Problem",
    "Proposer",
    "Result",
    "RunSpec",
    "Search",
    "Store",
    "Strategy",
    "bundled_problems",
    "load_problem",
]

_NAMES = {
    "bins": ("DEFAULT_BINS", "PAPER_BINS", "Bins"),
    "distribution": ("Distribution",),
    "errors": ("KernelcastError",),
    "events": ("RunSpec",),
    "parts": ("Parts",),
    "problems": ("bundled_problems", "load_problem"),
    "protocols": ("Backend", "Farm", "Forecaster", "Policy", "Proposer", "Strategy"),
    "search": ("Result", "Search"),
    "store": ("Store",),
    "types": (
        "Budget",
        "Decision",
        "Device",
        "Evidence",
        "Forecast",
        "Kernel",
        "Measurement",
        "Problem",
    ),
}
"""The public names by module. A module is imported when one of its names is used (PEP 562)."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
