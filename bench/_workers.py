"""Processes that a bench works with: they end when it does, however it ends.

Workers that outlive a bench which was killed go on searching, and spoil every timing after it.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor

_PR_SET_PDEATHSIG = 1


def workers(count: int, *, a_core_each: bool = False) -> ProcessPoolExecutor:
    """A pool of so many fresh processes; with a core for each, that no other of them has."""
    context = multiprocessing.get_context("spawn")
    cores: multiprocessing.Queue[int] | None = context.Queue() if a_core_each else None
    if cores is not None:
        for core in sorted(os.sched_getaffinity(0))[:count]:
            cores.put(core)
    return ProcessPoolExecutor(count, context, _begin, (cores,))


def _begin(cores: multiprocessing.Queue[int] | None) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if cores is not None:
        os.sched_setaffinity(0, {cores.get()})
