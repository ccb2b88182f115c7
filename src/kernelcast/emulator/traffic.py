"""What an access of some lanes takes of memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernelcast.emulator.lanes import WARP
from kernelcast.emulator.memory import Ints

SECTOR, LINE = 32, 128
"""Bytes of what global memory is moved by, and of what the cache holds it by."""
REQUESTS, SECTORS, LINES, WAVES, BYTES = range(5)
"""The order of the numbers of an access."""
NUMBERS = 5


@dataclass(frozen=True)
class Traffic:
    """Accesses of one kind: requests of warps, and what they take of memory.

    `sectors` are pieces of 32 bytes, `lines` of 128, `waves` the turns of shared memory; `bytes`
    are what the lanes want, a byte that two of them want twice.
    """

    requests: float = 0.0
    sectors: float = 0.0
    lines: float = 0.0
    waves: float = 0.0
    bytes: float = 0.0


def traffic_of(addresses: Ints, warps: Ints, size: int, *, shared: bool) -> list[float]:
    """Return what an access of some lanes takes of memory, in the order of `Traffic`."""
    requests = len(np.unique(warps))
    if shared:
        return [requests, 0.0, 0.0, _waves(addresses, warps, size), size * len(addresses)]
    first, last = addresses // SECTOR, (addresses + size - 1) // SECTOR
    sectors = first if (first == last).all() else np.concatenate([first, last])
    owners = warps if len(sectors) == len(warps) else np.concatenate([warps, warps])
    pairs = np.unique(owners * (1 << 44) + sectors)
    lines = np.unique(pairs >> 2)
    return [requests, len(pairs), len(lines), 0.0, size * len(addresses)]


def _waves(addresses: Ints, warps: Ints, size: int) -> float:
    """Return the turns that 32 banks of 4 bytes need: the most words that a warp wants of one."""
    words = (addresses // 4)[:, None] + np.arange(max(1, size // 4))
    wanted = np.unique((warps[:, None] * (1 << 30) + words).reshape(-1))
    banks, counts = np.unique((wanted >> 30) * WARP + wanted % WARP, return_counts=True)
    owner = banks // WARP
    starts = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
    return float(np.maximum.reduceat(counts, starts).sum())
