"""The parent's end of a worker process: start it confined, time one request, say how it died.

Everything that must not be in the kernel's process lives on this side: the clock, the nonce and
the power to kill. What a kernel does wrong comes back as a `Failure`, never as an exception.
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
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kernelcast.backends._sandbox import Grant, Sandbox
from kernelcast.backends._sandbox import bare_environment as bare_environment
from kernelcast.backends._sandbox import kill_group as kill_group
from kernelcast.backends._worker import CONFINED, LOAD_FAILED, LOADED
from kernelcast.errors import SetupError
from kernelcast.types import Failure, FailureKind

_REPLY = struct.Struct("<q")
_CONFINED, _LOADED = _REPLY.pack(CONFINED), _REPLY.pack(LOADED)
_LAST_BREATH_S = 0.2


class Child:
    """A confined process that holds one loaded kernel, and the memory it shares with it.

    Candidate and reference are confined alike, or the comparison would not be fair; but the
    reference, which is kept for many measurements, has no limit on CPU time (`cpu_s` None). The
    kernel is loaded by `load`, which must answer before the first `call`.
    """

    def __init__(
        self,
        library: Path,
        entry: str,
        arrays: int,
        dimensions: int,
        arena_bytes: int,
        *,
        sandbox: Sandbox,
        threads: int,
        cpu_s: int | None,
        memory_bytes: int,
    ) -> None:
        self._request = struct.Struct(f"<{4 + arrays + dimensions}q")
        memory_fd = os.memfd_create("kernelcast", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(memory_fd, arena_bytes)
        # A kernel that shrank the file would kill the parent with SIGBUS.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(memory_fd, fcntl.F_ADD_SEALS, seals)
        self.memory: NDArray[np.uint8] = np.frombuffer(
            mmap.mmap(memory_fd, arena_bytes), dtype=np.uint8
        )
        request_read, self._request_fd = os.pipe()
        self._reply_fd, reply_write = os.pipe()
        given = (memory_fd, request_read, reply_write)
        grant = Grant("measure", (library.parent,), (), memory_bytes + arena_bytes, cpu_s)
        try:
            self._process = sandbox.start(
                "_worker.main",
                [str(library), entry, *map(str, (arrays, dimensions, *given))],
                grant,
                library.parent,
                pass_fds=given,
                # Idle OpenMP threads that spin would slow the other half of an interleaved pair.
                OMP_NUM_THREADS=str(threads),
                OMP_WAIT_POLICY="passive",
            )
        finally:
            for fd in given:
                os.close(fd)
        # A grandchild may hold the pipe open after the child's death, hence the process as well.
        self._process_fd = os.pidfd_open(self._process.pid)
        self._open_fds = [self._request_fd, self._reply_fd, self._process_fd]
        self._poll = select.poll()
        for fd in (self._reply_fd, self._process_fd):
            self._poll.register(fd, select.POLLIN)

    @property
    def pid(self) -> int:
        """Id of the process that was started, which is also the id of its group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process is there to answer."""
        return self._process.alive

    def load(self, timeout_s: float) -> Failure | None:
        """Wait until the kernel is loaded."""
        deadline = time.perf_counter() + timeout_s
        said = b""
        while said != _CONFINED + _LOADED:
            ready = self._poll.poll(max(0, math.ceil((deadline - time.perf_counter()) * 1e3)))
            if not ready:
                return self._timeout(timeout_s)
            more = b""
            if any(fd == self._reply_fd for fd, _ in ready):
                more = os.read(self._reply_fd, 4 * _REPLY.size)
            said += more
            if not more or not (_CONFINED + _LOADED).startswith(said):
                return self._obituary() if said.startswith(_CONFINED) else self._unconfined()
        return None

    def call(
        self,
        offsets: Sequence[int],
        dimensions: Sequence[int],
        *,
        calls: int,
        stride: int,
        timeout_s: float,
        stub: bool = False,
    ) -> float | Failure:
        """Wall seconds of one request by this process's clock; after a failure it is dead."""
        nonce = secrets.randbits(62)
        request = self._request.pack(nonce, stub, calls, stride, *offsets, *dimensions)
        timeout_ms = math.ceil(timeout_s * 1e3)
        started_ns = time.perf_counter_ns()
        try:
            os.write(self._request_fd, request)
        except BrokenPipeError:
            return self._obituary()
        ready = self._poll.poll(timeout_ms)
        ended_ns = time.perf_counter_ns()
        if not ready:
            return self._timeout(timeout_s)
        if not self._answered(ready, _REPLY.pack(nonce)):
            return self._obituary()
        return (ended_ns - started_ns) * 1e-9

    def _answered(self, ready: list[tuple[int, int]], expected: bytes) -> bool:
        readable = any(fd == self._reply_fd for fd, _ in ready)
        return readable and os.read(self._reply_fd, 4 * len(expected)) == expected

    def _unconfined(self) -> Failure:
        """It ended before anything untrusted was touched, so the kernel is not to blame."""
        self._process.ended_within(_LAST_BREATH_S)
        raise SetupError(
            f"the sandbox did not come into force (status {self._process.end()}): "
            "see `kernelcast doctor`"
        )

    def _timeout(self, timeout_s: float) -> Failure:
        self._process.end()
        return Failure(kind=FailureKind.TIMEOUT, message=f"no answer within {timeout_s:.2f} s")

    def _obituary(self) -> Failure:
        """Why there is no proper answer. A process that already ended keeps its own status."""
        # The launcher passes on the status of the process within, a moment after its death.
        self._process.ended_within(_LAST_BREATH_S)
        status = self._process.end()
        if status == LOAD_FAILED:
            return Failure(
                kind=FailureKind.COMPILE_ERROR,
                message="the library does not load, or its entry is not an exported symbol",
            )
        if status == -signal.SIGKILL:
            return Failure(
                kind=FailureKind.CRASH,
                message="killed (SIGKILL): out of memory, or it wrote to or closed its reply pipe",
            )
        if status == -signal.SIGXCPU:
            return Failure(kind=FailureKind.TIMEOUT, message="used up its CPU seconds (SIGXCPU)")
        if status < 0:
            return Failure(kind=FailureKind.CRASH, message=f"died of {_signal_name(-status)}")
        return Failure(
            kind=FailureKind.CRASH, message=f"exited with status {status} without answering"
        )

    def close(self) -> None:
        """Kill all of it and release its pipes; the memory goes with the last view."""
        self._process.end()
        while self._open_fds:
            os.close(self._open_fds.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
