"""The parent's end of a worker process: start it, time one request, say how it died.

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
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kernelcast.backends._worker import LOAD_FAILED
from kernelcast.types import Failure, FailureKind

_WORKER = Path(__file__).with_name("_worker.py")
_REPLY = struct.Struct("<q")
_LOADED = _REPLY.pack(0)
_INHERITED = ("LANG", "LD_LIBRARY_PATH", "PATH")


def bare_environment(**extra: str) -> dict[str, str]:
    """An environment by allow-list, so that no key reaches untrusted code or its compiler."""
    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return kept | extra


def kill_group(process: subprocess.Popen[bytes]) -> int:
    """End a session leader with all of its group, reap it, and return its status."""
    if process.returncode is None:
        # Before reaping: until then the process id cannot belong to anybody else.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


class Child:
    """A process that holds one loaded kernel, and the memory it shares with it.

    `trusted` children (the reference) have no limits and may outlive the thread that started
    them. The kernel is loaded by `load`, which must answer before the first `call`.
    """

    def __init__(
        self,
        library: Path,
        entry: str,
        arrays: int,
        dimensions: int,
        arena_bytes: int,
        *,
        threads: int,
        cpu_s: int,
        memory_bytes: int,
        trusted: bool = False,
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
        numbers = (arrays, dimensions, *given, 0 if trusted else cpu_s, memory_bytes + arena_bytes)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_WORKER), str(library), entry, *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=given,
                start_new_session=True,
                cwd=library.parent,
                # Idle OpenMP threads that spin would slow the other half of an interleaved pair.
                env=bare_environment(OMP_NUM_THREADS=str(threads), OMP_WAIT_POLICY="passive"),
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
        """Process id, which is also the id of the group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process is there to answer."""
        return self._process.poll() is None

    def load(self, timeout_s: float) -> Failure | None:
        """Wait until the kernel is loaded."""
        ready = self._poll.poll(math.ceil(timeout_s * 1e3))
        if not ready:
            return self._timeout(timeout_s)
        return None if self._answered(ready, _LOADED) else self._obituary()

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

    def _timeout(self, timeout_s: float) -> Failure:
        kill_group(self._process)
        return Failure(kind=FailureKind.TIMEOUT, message=f"no answer within {timeout_s:.2f} s")

    def _obituary(self) -> Failure:
        """Why there is no proper answer. A process that already ended keeps its own status."""
        status = kill_group(self._process)
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
        """Kill the process group and release its pipes; the memory goes with the last view."""
        kill_group(self._process)
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
