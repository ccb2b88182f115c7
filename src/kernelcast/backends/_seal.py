"""The parent's look at a sealed process from outside: filters and memory.

The seal is in force before a kernel's first instruction (`_stub.c`, `_opencl_worker`). This is the
proof of it, which the process has no part in.

A process that compiles as it runs is sealed as early, by a filter that asks about each call which a
sealed process may not make. While the parent holds the `Listener`, it lets these calls pass. Once
it has closed it, the kernel refuses them, whatever the process has done meanwhile.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import select
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

_FILTERS = re.compile(r"^Seccomp_filters:\s*(\d+)$", re.MULTILINE)
_WRITABLE_CODE = re.compile(r"^\S+ .wx.", re.MULTILINE)
_GET_FD = 438  # the number of the system call `pidfd_getfd` on all machines
_NAME = "anon_inode:seccomp notify"
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_ASKED_BYTES = 80  # of which the first eight are the id
_ANSWER = struct.Struct("=QqiI")
_CONTINUE = 1


class Listener:
    """The parent's hold on the seal of a process that may still compile."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Take the listener that a process has open; None if the system does not allow it."""
        with suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                if str(link.readlink()) == _NAME:
                    pidfd = os.pidfd_open(pid)
                    fd = ctypes.CDLL(None).syscall(_GET_FD, pidfd, int(link.name), 0)
                    os.close(pidfd)
                    return cls(fd) if fd >= 0 else None
        return None

    def passed(self, ready: Sequence[tuple[int, int]]) -> bool:
        """Let a call pass if the process asks for one; whether that is all that was ready."""
        if (self.fd, select.POLLIN) in ready:
            asked = bytearray(_ASKED_BYTES)
            with suppress(OSError):  # the caller has ended
                fcntl.ioctl(self.fd, _RECEIVE, asked)
                (id_,) = struct.unpack_from("=Q", asked)
                fcntl.ioctl(self.fd, _SEND, _ANSWER.pack(id_, 0, 0, _CONTINUE))
        return all(fd == self.fd for fd, _ in ready)


def count_filters(pid: int) -> int:
    """Return the number of filters of that thread of a process which has the fewest."""
    counts = []
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            found = _FILTERS.search(status.read_text())
            counts.append(int(found[1]) if found else 0)
    return min(counts, default=0)


def broken_seal(pid: int, filters: int, *, makes_code: bool = False) -> str | None:
    """Return what is wrong with a process that had so many filters before it was sealed.

    One that makes code as it runs has memory that is both writable and executable.
    """
    if count_filters(pid) <= filters:
        return "it was not sealed: it kept its process from being confined"
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        maps = ""
    if not maps:
        return "it keeps its memory from being looked at"
    if not makes_code and _WRITABLE_CODE.search(maps):
        return "it has memory that is both writable and executable"
    return None


def strays(pid: int, worker: int) -> str | None:
    """Return what is wrong with the processes that began with this one, a worker's launcher.

    The launchers and the worker are a chain, in which each has one child and the worker none; a
    process that the worker left behind is beside or beyond it.
    """
    with suppress(OSError):
        while children := _children(pid):
            if len(children) > 1 or pid == worker:
                return "it left a process behind"
            pid = children[0]
        if pid != worker:
            return "it ended and left a process behind"
    return None


def _children(pid: int) -> list[int]:
    """Ids of the children of all threads of a process."""
    threads = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    if not threads:
        raise ProcessLookupError(pid)
    return [int(child) for children in threads for child in children.split()]
