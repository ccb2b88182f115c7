"""Seconds that a kernel takes on a device, estimated from what its blocks do.

A core works on several blocks at once. Each pipe of the core (arithmetic, shared memory, caches,
fetching of instructions) has its own share of the work; the slowest one sets the pace, and the
others add some. A block alone also waits for results, one after the other; other blocks fill that
time. Blocks come in waves, the last of which may be short. Memory beyond the caches is shared by
all cores.

Numbers may be NumPy arrays: many kernels at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any

import numpy as np

from kernelcast.emulator.counts import Counts
from kernelcast.emulator.kinds import Kind
from kernelcast.emulator.traffic import SECTOR

Number = Any
"""A float, or an array of them."""

_SCHEDULERS = 4
_INSTRUCTION_BYTES = 16
_LAUNCH_CYCLES = 600.0
_BARRIER_CYCLES = 20.0
_MISS_CYCLES = 400.0  # a load that the first cache does not hold
_SMALLEST_L1_BYTES = 16 << 10
_MEMORY_OVERLAP = 4.0  # an exponent, of memory and cores; assumed


@dataclass(frozen=True)
class Architecture:
    """What a core does in a cycle, in instructions of warps or bytes, and how long it waits.

    `multiplies_apart` is 1 if integers are multiplied where they are added, 0 if where floating
    point is. `reserved_bytes` of shared memory a block belong to the system.
    """

    float_rate: Number
    integer_rate: Number
    multiplies_apart: Number
    double_rate: Number
    special_rate: Number
    matrix_rate: Number
    shared_bytes: Number
    l1_sectors: Number
    l2_bytes: Number
    l1_kb: Number
    reserved_bytes: Number
    fetch_bytes: Number
    fetched_at_once_bytes: Number
    shared_cycles: Number
    l1_cycles: Number


@dataclass(frozen=True)
class Choices:
    """What no data sheet states, and was chosen by recorded times: see `bench/emulator.py`.

    `overlap` and `hiding` are exponents: the larger, the more is done at the same time. `division`
    multiplies the instructions of a division in the machine code.
    """

    overlap: float = 2.0
    hiding: float = 2.0
    division: float = 2.0


@dataclass(frozen=True)
class Work:
    """What a launch does: of a block by its pipes, and of all blocks together."""

    issued: Mapping[Kind, Number]
    shared_waves: Number
    l1_cycles: Number
    """Turns of the first cache for global and local accesses, if it moves one sector a cycle."""
    l1_lookups: Number
    loaded_sectors: Number
    different_sectors: Number
    written_sectors: Number
    chain_cycles: Number
    chain_shared: Number
    chain_global: Number
    phases: Number
    hot_bytes: Number
    """Bytes of the machine code that nearly all that is issued comes from."""
    spill_bytes: Number
    stack_bytes: Number
    shared_bytes: Number
    threads: Number
    warps: Number
    blocks: Number
    resident: Number
    """Blocks that a core holds at once."""
    footprint_bytes: Number
    """Of memory beyond the caches."""


def work_of(
    blocks: Sequence[tuple[float, Counts]],
    *,
    grid: Sequence[int],
    threads: int,
    resident: int,
    shared_bytes: int,
    stack_bytes: int,
    spill_bytes: int,
    code_bytes: int,
    array_bytes: int,
) -> Work:
    """Return what a launch does, from the counts of some blocks with their shares of the grid."""
    total: dict[str, float] = {}

    def add(name: str, amount: float) -> None:
        total[name] = total.get(name, 0.0) + amount

    issued: dict[Kind, float] = {}
    for share, counts in blocks:
        for phase in counts.phases:
            times = share * phase.times
            for kind, amount in phase.issued.items():
                issued[kind] = issued.get(kind, 0.0) + times * amount
            for kind, traffic in phase.traffic.items():
                if kind in ("load_shared", "store_shared"):
                    add("waves", times * traffic.waves)
                else:
                    add("lookups", times * max(traffic.lines, traffic.requests))
                    add("sectors", times * traffic.sectors)
                if kind == "load_global":
                    add("loaded", times * traffic.sectors)
                elif kind in ("store_global", "atomic"):
                    add("written", times * traffic.sectors)
            add("cycles", times * phase.chain.cycles)
            add("shared", times * phase.chain.shared_loads)
            add("global", times * phase.chain.global_loads)
            add("phases", times)
        add("different", share * counts.loaded_sectors)
        add("stored", share * counts.stored_sectors)
        add("hot", share * counts.hot_instructions / max(counts.instructions, 1))
    number = math.prod(grid)
    touched = (total["different"] + total["stored"]) * SECTOR * number
    return Work(
        issued=issued,
        shared_waves=total.get("waves", 0.0),
        l1_cycles=total.get("sectors", 0.0),
        l1_lookups=total.get("lookups", 0.0),
        loaded_sectors=total.get("loaded", 0.0),
        different_sectors=total["different"],
        written_sectors=total.get("written", 0.0),
        chain_cycles=total["cycles"],
        chain_shared=total["shared"],
        chain_global=total["global"],
        phases=total["phases"],
        hot_bytes=total["hot"] * code_bytes,
        spill_bytes=spill_bytes,
        stack_bytes=stack_bytes,
        shared_bytes=shared_bytes,
        threads=threads,
        warps=blocks[0][1].warps,
        blocks=number,
        resident=max(resident, 1),
        footprint_bytes=min(touched, array_bytes),
    )


@dataclass(frozen=True)
class Estimate:
    """An estimated time, and what makes it."""

    seconds: Number
    pipes: Mapping[str, Number]
    """Share of the time that each pipe alone would take, by name; also waiting and memory."""

    @property
    def bound(self) -> str:
        """The name of what takes the largest share."""
        return max(self.pipes, key=lambda name: float(self.pipes[name]))


def estimate(
    work: Work,
    architecture: Architecture,
    cores: Number,
    clock_hz: Number,
    bandwidth_bytes_s: Number,
    choices: Choices = Choices(),
) -> Estimate:
    """Estimate the time of a launch."""
    pipes, hit = _pipes(work, architecture, choices)
    pace = _together(list(pipes.values()), choices.overlap)
    miss_cycles = hit * architecture.l1_cycles + (1.0 - hit) * _MISS_CYCLES
    waiting = (
        work.chain_cycles
        + work.chain_shared * architecture.shared_cycles
        + work.chain_global * miss_cycles
    )
    alone = _together([waiting, pace], choices.hiding) + _BARRIER_CYCLES * work.phases

    def cycles(blocks: Number) -> Number:
        """Return the cycles of so many blocks on a core at once."""
        warps = np.maximum(blocks * work.warps, 1.0)
        uneven = np.ceil(warps / _SCHEDULERS) * _SCHEDULERS / warps
        power = choices.hiding
        extra = np.maximum(alone**power - pace**power, 0.0)
        return np.where(blocks > 0, ((blocks * pace * uneven) ** power + extra) ** (1 / power), 0.0)

    at_once = cores * work.resident
    full = np.floor(work.blocks / at_once)
    last = np.ceil((work.blocks - full * at_once) / cores)
    busy_s = (full * cycles(work.resident) + cycles(last) + _LAUNCH_CYCLES) / clock_hz
    memory_s = work.footprint_bytes / bandwidth_bytes_s
    seconds = _together([busy_s, memory_s], _MEMORY_OVERLAP)
    whole = clock_hz * seconds
    most = full * work.resident + last  # blocks of the core that has most of them
    shares = {name: amount * most / whole for name, amount in pipes.items()}
    shares["waiting"] = waiting * (full + (last > 0)) / whole
    shares["memory"] = memory_s / seconds
    return Estimate(seconds, shares)


def _pipes(
    work: Work, architecture: Architecture, choices: Choices
) -> tuple[dict[str, Number], Number]:
    """Return the cycles of each pipe for a block, and the share of loads that hit the L1 cache."""

    def issued(*kinds: Kind) -> Number:
        return sum(work.issued.get(kind, 0.0) for kind in kinds)

    division = choices.division * issued("divide")
    whole_division = choices.division * issued("divide_integer")
    integer = issued("integer") + 2.0 * issued("wide") + 0.5 * issued("control")
    integer = integer + 3.0 * division + 12.0 * whole_division
    multiplied = issued("multiply") + 5.0 * whole_division
    floating = issued("float", "special") + 6.0 * division
    special = issued("special", "convert") + 2.0 * division + whole_division
    double = issued("double") / architecture.double_rate + issued("convert_double") / np.minimum(
        architecture.double_rate, architecture.special_rate
    )
    accesses = issued(
        "load_shared", "store_shared", "load_global", "store_global", "load_local", "store_local",
        "load_constant", "atomic",
    )  # fmt: skip
    slots = integer + multiplied + floating + special - division + accesses
    slots = slots + issued("double", "convert_double", "shuffle", "barrier", "matrix")
    slots = slots + 0.5 * issued("control")
    apart = architecture.multiplies_apart
    spills = work.spill_bytes / 4.0 * work.warps
    l1 = np.maximum(work.l1_lookups, work.l1_cycles / architecture.l1_sectors)
    moved = work.shared_waves * 128.0 / architecture.shared_bytes
    moved = moved + l1 + spills
    l1_bytes = _l1_bytes(work, architecture)
    hit, missed = _l1_hits(work, l1_bytes)
    spilled = work.threads * work.stack_bytes * work.resident
    past_l1 = np.clip(1.0 - l1_bytes / np.maximum(spilled, 1.0), 0.0, 1.0)
    beyond = (missed + work.written_sectors) * SECTOR + past_l1 * work.spill_bytes * work.threads
    held = architecture.fetched_at_once_bytes
    streamed = np.clip((work.hot_bytes - held) / held, 0.0, 1.0)
    return {
        "issue": slots / _SCHEDULERS,
        "float": (floating + multiplied * (1.0 - apart)) / architecture.float_rate,
        "integer": (integer + multiplied * apart) / architecture.integer_rate,
        "special": special / architecture.special_rate,
        "double": double,
        "matrix": issued("matrix") / architecture.matrix_rate,
        "memory pipe": moved,
        "L2 cache": beyond / architecture.l2_bytes,
        "instruction fetch": streamed * slots * _INSTRUCTION_BYTES / architecture.fetch_bytes,
    }, hit


def _l1_bytes(work: Work, architecture: Architecture) -> Number:
    """Return what the blocks of a core leave of its first cache."""
    taken = work.resident * (work.shared_bytes + architecture.reserved_bytes)
    return np.maximum(architecture.l1_kb * 1024.0 - taken, _SMALLEST_L1_BYTES)


def _l1_hits(work: Work, l1_bytes: Number) -> tuple[Number, Number]:
    """Return the share of loads that the first cache holds, and the sectors that it does not."""
    needed = work.resident * work.different_sectors * SECTOR
    lost = 0.5 * np.clip(np.log2(np.maximum(needed / l1_bytes, 1e-9)), 0.0, 1.0)
    again = np.maximum(work.loaded_sectors - work.different_sectors, 0.0)
    missed = work.different_sectors + lost * again
    missed = np.minimum(missed, work.loaded_sectors)
    return 1.0 - missed / np.maximum(work.loaded_sectors, 1e-9), missed


def _together(parts: Sequence[Number], power: float) -> Number:
    """Return the time of parts that overlap: between their maximum and their sum."""
    largest = reduce(np.maximum, parts) + 1e-12
    return largest * sum((part / largest) ** power for part in parts) ** (1.0 / power)


def stacked(works: Sequence[Work]) -> Work:
    """Return many works as one, with arrays of numbers."""
    kinds = sorted({kind for work in works for kind in work.issued})
    issued = {kind: np.array([work.issued.get(kind, 0.0) for work in works]) for kind in kinds}
    numbers = {
        field.name: np.array([getattr(work, field.name) for work in works], float)
        for field in fields(Work)
        if field.name != "issued"
    }
    return replace(works[0], issued=issued, **numbers)
