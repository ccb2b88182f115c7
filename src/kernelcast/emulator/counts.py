"""What the hardware would do for a block of a kernel, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelcast.emulator.flow import Chain
from kernelcast.emulator.kinds import Kind
from kernelcast.emulator.traffic import NUMBERS, Traffic


@dataclass(frozen=True)
class Phase:
    """What a block does between two barriers, `times` over.

    `issued` are instructions of warps.
    """

    times: float
    issued: Mapping[Kind, float]
    traffic: Mapping[Kind, Traffic]
    chain: Chain


@dataclass(frozen=True)
class Line:
    """What a line of the source costs: instructions of warps, sectors and waves."""

    issued: float
    sectors: float
    waves: float


@dataclass(frozen=True)
class Counts:
    """What one block of a kernel does."""

    warps: int
    phases: tuple[Phase, ...]
    loaded_sectors: float
    """Different sectors of global memory that it reads."""
    stored_sectors: float
    efficiency: float
    """Share of the lanes of issued instructions that do something."""
    exact: bool
    """Whether every turn of a loop was run, or is alike by its registers alone."""
    instructions: int
    """Length of the code."""
    hot_instructions: int
    """Length of the parts of the code that most of what is issued comes from."""
    lines: Mapping[int, Line]

    def total(self, kind: Kind) -> float:
        """Return how often warps issue instructions of a kind."""
        return sum(phase.times * phase.issued.get(kind, 0.0) for phase in self.phases)

    def traffic(self, kind: Kind) -> Traffic:
        """Return all accesses of a kind."""
        sums = [0.0] * NUMBERS
        for phase in self.phases:
            if some := phase.traffic.get(kind):
                values = (some.requests, some.sectors, some.lines, some.waves, some.bytes)
                sums = [
                    total + phase.times * value for total, value in zip(sums, values, strict=True)
                ]
        return Traffic(*sums)
