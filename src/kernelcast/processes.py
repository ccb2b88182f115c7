"""Pools of worker processes that end when the process that started them ends.

A worker that outlives a killed parent would keep a core busy and disturb later timings.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

_PR_SET_PDEATHSIG = 1
_THREADS = "OMP_NUM_THREADS"


@contextmanager
def workers(count: int, *, a_core_each: bool = False) -> Iterator[ProcessPoolExecutor]:
    """Start a pool of new processes with one thread each for linear algebra.

    Ctrl-C reaches the parent alone, which ends the processes at once.

    Args:
        count: The number of processes.
        a_core_each: Give each process a core that no other process of the pool has.
    """
    context = multiprocessing.get_context("spawn")
    cores: multiprocessing.Queue[int] | None = context.Queue() if a_core_each else None
    if cores is not None:
        for core in sorted(os.sched_getaffinity(0))[:count]:
            cores.put(core)
    pool = ProcessPoolExecutor(count, context, _begin, (cores,))
    others = multiprocessing.active_children()
    threads = os.environ.get(_THREADS)
    os.environ[_THREADS] = threads or "1"
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        # One job a process starts them all now, with this environment and signal mask.
        for _ in range(count):
            pool.submit(os.getpid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if threads is None:
            del os.environ[_THREADS]
    try:
        yield pool
    except BaseException:  # includes Ctrl-C
        for process in multiprocessing.active_children():
            if process not in others:
                process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(cores: multiprocessing.Queue[int] | None) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if cores is not None:
        os.sched_setaffinity(0, {cores.get()})
