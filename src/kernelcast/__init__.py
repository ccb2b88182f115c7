"""kernelcast: find faster kernels with fewer hardware measurements."""

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
