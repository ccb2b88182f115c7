"""The parent's end of a worker process: start it confined, time one request, say how it died.

Everything that must not be in the kernel's process is on this side: the clock, the nonce and the
power to kill. What a kernel does wrong comes back as a `Failure`, never as an exception.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import secrets
import select
import signal
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kernelcast.backends._arena import Arena
from kernelcast.backends._patience import Patience, cpu_clock, innermost
from kernelcast.backends._sandbox import Grant, Sandbox
from kernelcast.backends._worker import CONFINED, LOAD_FAILED, LOADED
from kernelcast.errors import SetupError
from kernelcast.types import Failure, FailureKind

_REPLY = struct.Struct("<qq")
_CONFINED, _LOADED = _REPLY.pack(CONFINED, 0), _REPLY.pack(LOADED, 0)
_LAST_BREATH_S = 0.2
STARVED = 0.5  # of a core: less than that is starvation
_DEATHS: dict[int, tuple[FailureKind, str]] = {
    signal.SIGSYS: (
        FailureKind.CHEATING,
        "asked the system for something that no kernel needs (SIGSYS)",
    ),
    signal.SIGKILL: (
        FailureKind.CRASH,
        "killed (SIGKILL): out of memory, or it closed its reply pipe",
    ),
    signal.SIGXCPU: (FailureKind.TIMEOUT, "used up its CPU seconds (SIGXCPU)"),
}
_WAKING_S = 1e-3  # what a request may take beyond its CPU time on a quiet machine


class Child(ABC):
    """A confined process that holds one loaded kernel, and the memory it shares with it.

    Candidate and reference are confined alike, for a fair comparison. `load` must succeed before
    anything else. After a failure the process is dead. A request is a number of 64-bit `words`;
    `_worker.Service` is the other end.

    A process that gets no core is waited for beyond the limit of a request (see `Patience`), but
    not beyond the `deadline` (of `time.perf_counter`). If it gives no answer by then, it is
    `starved`: the machine is busy, and nothing is known about the kernel. Of `wall_s` seconds of
    requests so far, the process had a core for `core_s`.
    """

    on_cpu = True  # whether the kernel computes in this process, and not on a device

    def __init__(
        self,
        sandbox: Sandbox,
        task: str,
        arguments: Sequence[str],
        grant: Grant,
        folder: Path,
        *,
        words: int,
        arena: Arena,
        **environment: str,
    ) -> None:
        self.arena = arena
        self._request = struct.Struct(f"<{1 + words}q")
        memory_fd = os.memfd_create("kernelcast", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(memory_fd, arena.size)
        # A kernel that shrank the file would kill the parent with SIGBUS.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(memory_fd, fcntl.F_ADD_SEALS, seals)
        memory = mmap.mmap(memory_fd, arena.size)
        self.memory: NDArray[np.uint8] = np.frombuffer(memory, dtype=np.uint8)
        request_read, self._request_fd = os.pipe()
        self._reply_fd, reply_write = os.pipe()
        passed = (memory_fd, request_read, reply_write)
        try:
            self._process = sandbox.start(
                task,
                [*arguments, str(words), *map(str, passed)],
                grant,
                folder,
                environment=environment,
                pass_fds=passed,
            )
        finally:
            for fd in passed:
                os.close(fd)
        # A grandchild may hold the pipe open after the child's death: watch the process as well.
        process_fd = os.pidfd_open(self.pid)
        self._open_fds = [self._request_fd, self._reply_fd, process_fd]
        self._poll = select.poll()
        for fd in (self._reply_fd, process_fd):
            self._poll.register(fd, select.POLLIN)
        self.cores = sorted(os.sched_getaffinity(0))
        self.core = self.cores[0]  # where both children of a comparison wake up
        self._worker_pid: int | None = None
        self._cpu_clock: int | None = None
        self._cpu_seen_s = 0.0
        self.idle_cpu_s = 0.0
        self.deadline = math.inf
        self.wall_s = self.core_s = 0.0
        self.share = 1.0  # of a core, in a request that ended in starvation
        self._computed_s = 0.0  # in a request that was not answered

    @abstractmethod
    def run(self, case: str, calls: int, base: int, timeout_s: float) -> float | Failure:
        """Wall seconds of calling the kernel on so many slots of a case, the first at `base`."""

    @abstractmethod
    def idle(self, case: str, calls: int, timeout_s: float) -> float | Failure:
        """Wall seconds of the same request without the work."""

    def _refused(self, result: int) -> Failure:
        """The failure that a result other than 0 means."""
        return Failure(kind=FailureKind.CRASH, message=f"the call failed with {result}")

    def _ended(self, status: int) -> Failure:
        """The failure that an exit of the process means."""
        if status == LOAD_FAILED:
            message = "the library does not load, or its entry is not an exported symbol"
            return Failure(kind=FailureKind.COMPILE_ERROR, message=message)
        message = f"exited with status {status} without answering"
        return Failure(kind=FailureKind.CRASH, message=message)

    @property
    def pid(self) -> int:
        """Id of the process and of its group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.alive

    @property
    def starved(self) -> bool:
        """Whether the process did not answer because it got no core."""
        return self.share < STARVED

    def load(self, timeout_s: float) -> Failure | None:
        """Wait until the kernel is loaded."""
        deadline = time.perf_counter() + timeout_s
        received = b""
        while received != _CONFINED + _LOADED:
            left_s = max(0.0, deadline - time.perf_counter())
            ready = self._poll.poll(math.ceil(left_s * 1e3)) or self._wait_longer(timeout_s)
            if not ready:
                return self._timeout(timeout_s)
            more = self._read(ready)
            received += more
            if not more or not (_CONFINED + _LOADED).startswith(received):
                return self._obituary() if received.startswith(_CONFINED) else self._unconfined()
        self._worker_pid = innermost(self.pid)
        self._cpu_clock = cpu_clock(self._worker_pid)
        self._cpu_seen_s = self._cpu_s()
        return None

    def call(
        self, words: Sequence[int], timeout_s: float, *, working: bool = True
    ) -> float | Failure:
        """Wall seconds of one request, by the clock of this process.

        CPU time that the child takes outside of requests, or in one that is not `working`, is
        added to `idle_cpu_s`.
        """
        nonce = secrets.randbits(62)
        request = self._request.pack(nonce, *words)
        timeout_ms = math.ceil(timeout_s * 1e3)
        self.audit()
        started_ns = time.perf_counter_ns()
        try:
            os.write(self._request_fd, request)
        except BrokenPipeError:
            return self._obituary()
        ready = self._poll.poll(timeout_ms) or self._wait_longer(timeout_s)
        seconds = (time.perf_counter_ns() - started_ns) * 1e-9
        if not ready:
            return self._timeout(timeout_s)
        reply = self._read(ready)
        if not reply:
            return self._obituary()
        if len(reply) != _REPLY.size or _REPLY.unpack(reply)[0] != nonce:
            self._process.end()
            return Failure(kind=FailureKind.CHEATING, message="it forged a reply")
        cpu_before_s = self._cpu_seen_s
        if working:
            self._cpu_seen_s = self._cpu_s()
        else:
            self.audit()
        self._count(seconds, self._cpu_seen_s - cpu_before_s + _WAKING_S)
        if result := _REPLY.unpack(reply)[1]:
            self._process.end()
            return self._refused(result)
        return seconds

    def _read(self, ready: list[tuple[int, int]]) -> bytes:
        """The reply that is there; nothing if the process ended without one."""
        if any(fd == self._reply_fd for fd, _ in ready):
            return os.read(self._reply_fd, 4 * _REPLY.size)
        return b""

    def place(self, cores: Iterable[int]) -> None:
        """Where the main thread is to run from its next request on; a wish, not a limit."""
        if self._worker_pid is not None:
            with suppress(OSError):
                os.sched_setaffinity(self._worker_pid, cores)

    def audit(self) -> None:
        """Count the CPU time since the last look as used while idle."""
        now_s = self._cpu_s()
        self.idle_cpu_s += now_s - self._cpu_seen_s
        self._cpu_seen_s = now_s

    def _cpu_s(self) -> float:
        """CPU seconds of all of the worker's threads so far."""
        if self._cpu_clock is not None:
            with suppress(OSError):
                return time.clock_gettime(self._cpu_clock)
        return self._cpu_seen_s

    def _count(self, wall_s: float, cpu_s: float) -> None:
        self.wall_s += wall_s
        self.core_s += min(wall_s, cpu_s) if self.on_cpu else wall_s

    def _wait_longer(self, limit_s: float) -> list[tuple[int, int]]:
        """Wait beyond the limit while the process is starved, and return what became ready."""
        patience = Patience(self.pid, limit_s, self._cpu_seen_s, self.deadline)
        if ready := patience.wait(self._poll):
            return ready
        waited_s, self._computed_s = patience.waited_s, patience.computed_s
        core_s = self._computed_s if patience.starved else waited_s
        self._count(waited_s, core_s)
        self.share = min(1.0, core_s / waited_s)
        return []

    def _unconfined(self) -> Failure:
        """Raise: the process ended before it touched the kernel, which is not to blame."""
        self._process.ended_within(_LAST_BREATH_S)
        raise SetupError(
            f"the sandbox did not come into force (status {self._process.end()}): "
            "see `kernelcast doctor`"
        )

    def _timeout(self, timeout_s: float) -> Failure:
        self._process.end()
        message = f"no answer within {timeout_s:.2f} s"
        if self.on_cpu:
            message += f", of which it computed for {self._computed_s:.2f} s"
        return Failure(kind=FailureKind.TIMEOUT, message=message)

    def _obituary(self) -> Failure:
        """Why there is no proper answer. A process that already ended keeps its own status."""
        # The launcher passes on the status of the process within, a moment after its death.
        self._process.ended_within(_LAST_BREATH_S)
        status = self._process.end()
        if status >= 0:
            return self._ended(status)
        if -status in _DEATHS:
            kind, message = _DEATHS[-status]
            return Failure(kind=kind, message=message)
        name = f"signal {-status}"
        with suppress(ValueError):
            name = signal.Signals(-status).name
        return Failure(kind=FailureKind.CRASH, message=f"died of {name}")

    def close(self) -> None:
        """Kill all of the process and close its pipes; the memory goes with the last view."""
        self._process.end()
        while self._open_fds:
            os.close(self._open_fds.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
