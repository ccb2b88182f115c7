"""Processes that are started before they are needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from kernelcast.backends._arena import Arena
from kernelcast.backends._child import Child
from kernelcast.types import Problem

C = TypeVar("C", bound=Child)


class Ahead(Generic[C]):
    """Two confined processes without a kernel, started when a measurement has ended.

    Starting one takes 20 ms, as long as twenty calls of many kernels, and with PyTorch 2 s.
    """

    def __init__(self, start: Callable[[Arena], C]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "kernelcast-ahead")
        self._waiting: list[Future[C]] = []

    def start(self, arena: Arena) -> None:
        """Start two processes for this problem in the background."""
        with self._lock:
            self._discard(but=arena.problem)
            while len(self._waiting) < 2:
                self._waiting.append(self._thread.submit(self._start, arena))

    def take(self, arena: Arena) -> C:
        """A waiting process of this problem, or a new one."""
        with self._lock:
            self._discard(but=arena.problem)
            waiting = self._waiting.pop().result() if self._waiting else None
        if waiting is None:
            return self._start(arena)
        waiting.arena = arena  # of the same size, with other hidden cases
        return waiting

    def close(self) -> None:
        """End all processes, and start no more."""
        with self._lock:
            self._discard()
            self._thread.shutdown()

    def _discard(self, but: Problem | None = None) -> None:
        futures, self._waiting = self._waiting, []
        for future in futures:
            if future.exception() is not None:
                continue  # `take` starts one, and raises the error
            child = future.result()
            if but is not None and child.alive and child.arena.problem.id == but.id:
                self._waiting.append(future)
            else:
                child.close()
