"""Patience: how a limit in seconds is applied to a process on a busy machine.

A limit counts the time that the process computes or sleeps. A process that is ready to run and gets
no core is starved; the wait for it is extended, up to eight limits.
"""

from __future__ import annotations

import math
import select
import time
from contextlib import suppress
from pathlib import Path

_MOST_LIMITS = 8
_COMPUTED = 0.9  # of a limit, as CPU time: as good as all of it
_NOT_RUNNABLE = "SZX"  # states of a thread in /proc: asleep, ended
_STOPPED = "Tt"


class Patience:
    """How much longer to wait for a process, after a limit has passed.

    Args:
        pid: The process, or the launcher that it runs in.
        limit_s: The limit.
        cpu_before_s: CPU seconds of the process when it began.
        deadline: When to give up in any case, of `time.perf_counter`.
        sealed: Whether the process cannot stop itself, so that one that is stopped is starved.
    """

    def __init__(
        self,
        pid: int,
        limit_s: float,
        cpu_before_s: float = 0.0,
        deadline: float = math.inf,
        *,
        sealed: bool = True,
    ) -> None:
        self._pid = pid
        self._idle = _NOT_RUNNABLE if sealed else _NOT_RUNNABLE + _STOPPED
        self._limit_s = limit_s
        self._cpu_before_s = cpu_before_s
        self._started = time.perf_counter() - limit_s
        self._until = min(self._started + _MOST_LIMITS * limit_s, deadline)
        self.computed_s = 0.0
        self.waited_s = limit_s
        self.starved = False

    def left_s(self) -> float:
        """Look at the process, and return the seconds until the next look; 0 to give up."""
        worker = innermost(self._pid)
        with suppress(OSError):
            self.computed_s = time.clock_gettime(cpu_clock(worker)) - self._cpu_before_s
        wants_core = _wants_core(worker, self._idle)
        self.starved = self.computed_s < _COMPUTED * self._limit_s and wants_core
        now = time.perf_counter()
        self.waited_s = now - self._started
        if not self.starved:
            return 0.0
        return max(0.0, min(self._limit_s - self.computed_s, self._until - now))

    def wait(self, poll: select.poll) -> list[tuple[int, int]]:
        """Wait while the process is starved, and return what became ready."""
        while True:
            left_s = self.left_s()
            # Also if no time is left: it may have answered since the last look.
            ready = poll.poll(math.ceil(left_s * 1e3))
            if ready or left_s == 0.0:
                return ready


def innermost(pid: int) -> int:
    """The process id of the worker within its launchers; a worker has no children."""
    with suppress(OSError):
        while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            pid = int(children[0])
    return pid


def cpu_clock(pid: int) -> int:
    """The clock of a process's CPU time, as computed by clock_getcpuclockid(3)."""
    return (~pid << 3) | 2


def _wants_core(pid: int, idle: str) -> bool:
    """Whether a thread of the process is in another state than these."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            if stat.read_text().rpartition(")")[2].split()[0] not in idle:
                return True
    return False
