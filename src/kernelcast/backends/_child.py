"""The parent's end of a worker process: start it confined, time one request, say how it died.

Everything that must not be in the kernel's process is on this side: the clock, the nonce and the
power to kill. What a kernel does wrong comes back as a `Failure`, never as an exception.
"""

from __future__ import annotations

import math
import os
import secrets
import select
import signal
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Self

from kernelcast.backends._arena import Arena
from kernelcast.backends._line import Line
from kernelcast.backends._patience import Patience, cpu_clock, innermost
from kernelcast.backends._sandbox import LAST_BREATH_S, MOST_THREADS, Grant, Sandbox, death
from kernelcast.backends._seal import Listener, broken_seal, count_filters
from kernelcast.backends._stub import MOST_WORDS, cpu_counter
from kernelcast.backends._worker import CONFINED, LOAD_FAILED, LOADED
from kernelcast.errors import ProblemError, SetupError
from kernelcast.types import Failure, FailureKind

_REPLY = struct.Struct("<qq")
_CONFINED, _LOADED = _REPLY.pack(CONFINED, 0), _REPLY.pack(LOADED, 0)
STARVED = 0.5  # of a core: less than that is starvation
_NOT_HEARD = (
    "it compiles as it runs, and the system does not let kernelcast listen to its process, which "
    "needs Linux 5.6 and kernel.yama.ptrace_scope of 0 or 1"
)
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


class Child:
    """A confined process that holds one loaded kernel, and the memory it shares with it.

    Candidate and reference are confined alike, for a fair comparison. `load` must succeed before
    anything else. After a failure the process is dead. A request is a number of 64-bit `words`;
    `_worker.Service` or `_stub.c` is the other end.

    `aside_s` is what the process took so far that no timed request shows: CPU time between requests
    and in those that wake it or copy to and from a device.

    A process that gets no core is waited for beyond the limit of a request (see `Patience`), but
    not beyond the `deadline` (of `time.perf_counter`). If it gives no answer by then, it is
    `starved`: the machine is busy, and nothing is known about the kernel. Of `wall_s` seconds of
    requests so far, the process had a core for `core_s`.

    `copies_s` is what the last request's copies took, which are no part of `aside_s`.
    """

    on_cpu = True  # whether the kernel computes in this process, and not on a device
    makes_code = False  # whether the process may make code as it runs
    sealed_by_linker = False  # by `_stub.c`, with the filter in a file of the folder

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
        extra_bytes: int = 0,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.arena = arena
        if 1 + words > MOST_WORDS:
            raise ProblemError(f"{arena.problem.name} has too many arguments: {words} words")
        self._request = struct.Struct(f"<{1 + words}q")
        self._line = Line(arena.size + extra_bytes)
        self.memory = self._line.memory
        self._seal = sandbox.seal(grant, self._line.reply_write) if self.on_cpu else b""
        if self.sealed_by_linker:
            (folder / "seal").write_bytes(self._seal)
        arguments = [*arguments, str(words)]
        self._process = self._line.start(sandbox, task, arguments, grant, folder, environment)
        self.cores = sorted(os.sched_getaffinity(0))
        self.core = self.cores[0]  # where both children of a comparison wake up
        self._worker_pid: int | None = None
        self._filters = 0
        self._asks = grant.asks and bool(self._seal)
        self._listener: Listener | None = None
        self._loaded = self._crowded = False
        self._tasks_fd = -1
        self._cpu_clock: int | None = None
        self._cpu_seen_s = 0.0
        self.aside_s = 0.0
        self.copies_s = 0.0
        self.deadline = math.inf
        self.wall_s = self.core_s = 0.0
        self.share = 1.0  # of a core, in a request that ended in starvation
        self._computed_s = 0.0  # in a request that was not answered

    def words(self, case: str, calls: int, base: int, *, idle: bool) -> list[int]:
        """The words of a request on so many slots of a case, the first at `base`."""
        layout = self.arena.layouts[case]
        offsets = [base + offset for offset in layout.offsets]
        return [idle, calls, layout.stride, *offsets, *self.arena.extents(case)]

    def prepare(self, case: str, calls: int, base: int, timeout_s: float) -> Failure | None:
        """Hook: get ready for a run on these slots, before the inputs are written to them."""

    def run(self, case: str, calls: int, base: int, timeout_s: float) -> float | Failure:
        """Wall seconds of calling the kernel on so many slots of a case, the first at `base`."""
        # A child that slept answers late; an idle request wakes it before the clock starts, on the
        # core on which the other child is timed too. The call itself may use all of them.
        self.place([self.core])
        awake = self.idle(case, 1, timeout_s)
        if isinstance(awake, Failure):
            return awake
        self.place(self.cores)
        return self.call(self.words(case, calls, base, idle=False), timeout_s)

    def idle(self, case: str, calls: int, timeout_s: float) -> float | Failure:
        """Wall seconds of the same request without the work."""
        return self.call(self.words(case, calls, 0, idle=True), timeout_s, working=False)

    def refused(self, result: int) -> Failure:
        """The failure that a result other than 0 means."""
        return Failure(kind=FailureKind.CRASH, message=f"the call failed with {result}")

    def ended(self, status: int) -> Failure:
        """The failure that an exit of the process before it had loaded the kernel means."""
        if status == LOAD_FAILED:
            message = "the library does not load, or its entry is not an exported symbol"
            return Failure(kind=FailureKind.COMPILE_ERROR, message=message)
        return self._left(status)

    def _left(self, status: int) -> Failure:
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
        """Wait until the kernel is loaded and its process sealed."""
        if not self._heard(_CONFINED, timeout_s):
            return self._timeout(timeout_s) if self.alive else self._unconfined()
        self._worker_pid = innermost(self.pid)
        self._filters = count_filters(self._worker_pid)
        if self._asks:
            self._filters -= 1  # its seal is there already
            if failure := self._listen(self._worker_pid):
                return failure
        if self.on_cpu:
            try:
                tasks_fd = os.open(f"/proc/{self._worker_pid}/task", os.O_RDONLY)
            except OSError:  # it could not load the kernel
                return self._obituary()
            self._tasks_fd = self._line.keep(tasks_fd)
            with suppress(BrokenPipeError):  # it waits for this before it is sealed
                os.write(self._line.request_fd, b"\0")
        if not self._heard(_LOADED, timeout_s):
            return self._timeout(timeout_s) if self.alive else self._obituary()
        self._stop_listening()
        self._loaded = True
        self._cpu_clock = cpu_clock(self._worker_pid)
        self._cpu_seen_s = self._cpu_s()
        return self.inspect()

    def _listen(self, pid: int) -> Failure | None:
        """Let calls pass from now on; end the process if the system does not allow that."""
        self._listener = Listener.of(pid)
        if self._listener is None:
            self._process.end()
            return Failure(kind=FailureKind.COMPILE_ERROR, message=_NOT_HEARD)
        self._line.poll.register(self._listener.fd, select.POLLIN)
        return None

    def _stop_listening(self) -> None:
        """Let no further call pass."""
        if self._listener is not None:
            self._line.poll.unregister(self._listener.fd)
            os.close(self._listener.fd)
            self._listener = None

    def _heard(self, expected: bytes, timeout_s: float) -> bool:
        """Wait for a message. False: it did not come in time, or the process is dead."""
        deadline = time.perf_counter() + timeout_s
        received = b""
        while received != expected:
            left_s = max(0.0, deadline - time.perf_counter())
            ready = self._line.poll.poll(math.ceil(left_s * 1e3)) or self._wait_longer(timeout_s)
            if not ready:
                return False
            if self._listener is not None and self._listener.passed(ready):
                if time.perf_counter() >= deadline + timeout_s:  # it asks without end
                    return False
                continue
            more = self._line.read(ready, len(expected) - len(received))
            received += more
            if not more or not expected.startswith(received):
                self._process.fate()
                return False
        return True

    def inspect(self, *, whole: bool = True) -> Failure | None:
        """Look at the sealed process from outside; if not `whole`, only at its threads so far."""
        if self._worker_pid is None or not self._seal:
            return None
        fault = f"it runs more than {MOST_THREADS} threads" if self._crowded else None
        if whole and fault is None:
            fault = broken_seal(self._worker_pid, self._filters, makes_code=self.makes_code)
        if fault is None:
            return None
        if self._process.ended_within(LAST_BREATH_S):  # there is nothing to look at
            return self._obituary()
        self._process.end()
        return Failure(kind=FailureKind.CHEATING, message=fault)

    def call(
        self, words: Sequence[int], timeout_s: float, *, working: bool = True
    ) -> float | Failure:
        """Wall seconds of one request, by the clock of this process.

        CPU time that the child takes outside of requests, or in one that is not `working`, is
        added to `aside_s`.
        """
        nonce = secrets.randbits(62)
        request = self._request.pack(nonce, *words)
        timeout_ms = math.ceil(timeout_s * 1e3)
        if working:
            self.audit()
        started_ns = time.perf_counter_ns()
        try:
            os.write(self._line.request_fd, request)
        except BrokenPipeError:
            return self._obituary()
        ready = self._line.poll.poll(timeout_ms) or self._wait_longer(timeout_s)
        seconds = (time.perf_counter_ns() - started_ns) * 1e-9
        if not ready:
            return self._timeout(timeout_s)
        reply = self._line.read(ready, 4 * _REPLY.size)
        if not reply:
            return self._obituary()
        if len(reply) != _REPLY.size or _REPLY.unpack(reply)[0] != nonce:
            self._process.end()
            return Failure(kind=FailureKind.CHEATING, message="it forged a reply")
        if working:
            cpu_before_s, self._cpu_seen_s = self._cpu_seen_s, self._cpu_s()
            self._count(seconds, self._cpu_seen_s - cpu_before_s + _WAKING_S)
        if result := _REPLY.unpack(reply)[1]:
            self._process.end()
            return self.refused(result)
        return seconds

    def place(self, cores: Iterable[int]) -> None:
        """Where the main thread is to run from its next request on; a wish, not a limit."""
        if self._worker_pid is not None:
            with suppress(OSError):
                os.sched_setaffinity(self._worker_pid, cores)

    def audit(self) -> None:
        """Count the CPU time since the last look as taken aside."""
        now_s = self._cpu_s()
        self.aside_s += now_s - self._cpu_seen_s
        self._cpu_seen_s = now_s

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all of the worker's threads, when they were last looked at."""
        return self._cpu_seen_s

    def _cpu_s(self) -> float:
        """CPU seconds of all of the worker's threads so far."""
        if self._cpu_clock is None:
            return 0.0
        if self.on_cpu:
            counted_ns = cpu_counter()(self._tasks_fd, self._cpu_clock, MOST_THREADS)
            self._crowded = self._crowded or counted_ns == -3
            if counted_ns == -2:
                raise SetupError(
                    "the system does not let kernelcast change the scheduling policy of its own "
                    "processes (sched_setscheduler): allow that, for example in the container"
                )
            return counted_ns * 1e-9 if counted_ns >= 0 else self._cpu_seen_s
        with suppress(OSError):
            return time.clock_gettime(self._cpu_clock)
        return self._cpu_seen_s

    def _count(self, wall_s: float, cpu_s: float) -> None:
        self.wall_s += wall_s
        self.core_s += min(wall_s, cpu_s) if self.on_cpu else wall_s

    def _wait_longer(self, limit_s: float) -> list[tuple[int, int]]:
        """Wait beyond the limit while the process is starved, and return what became ready."""
        patience = Patience(self.pid, limit_s, self._cpu_seen_s, self.deadline)
        if ready := patience.wait(self._line.poll):
            return ready
        waited_s, self._computed_s = patience.waited_s, patience.computed_s
        core_s = self._computed_s if patience.starved else waited_s
        self._count(waited_s, core_s)
        self.share = min(1.0, core_s / waited_s)
        return []

    def _unconfined(self) -> Failure:
        """Raise: the process ended before it touched the kernel, which is not to blame."""
        raise SetupError(
            f"the sandbox did not come into force (status {self._process.fate()}): "
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
        status = self._process.fate()
        if status >= 0:
            # A kernel may choose any status, so it means something only before one is loaded.
            return self._left(status) if self._loaded else self.ended(status)
        if -status in _DEATHS:
            kind, message = _DEATHS[-status]
            return Failure(kind=kind, message=message)
        return Failure(kind=FailureKind.CRASH, message=death(status))

    def close(self) -> None:
        """Kill all of the process and close its pipes; the memory goes with the last view."""
        self._process.end()
        self._stop_listening()
        self._line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
