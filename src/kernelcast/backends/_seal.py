"""The parent's look at a sealed process from outside: filters and memory.

The seal is in force before a kernel's first instruction (`_stub.c`, `_opencl_worker`). This is the
proof of it, which the process has no part in.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

_FILTERS = re.compile(r"^Seccomp_filters:\s*(\d+)$", re.MULTILINE)
_WRITABLE_CODE = re.compile(r"^\S+ .wx.", re.MULTILINE)


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
