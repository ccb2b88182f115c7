"""The line between this program and a confined process: shared memory and two pipes."""

from __future__ import annotations

import math
import os
import select
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernelcast.backends._arena import shared_memory
from kernelcast.backends._patience import Patience
from kernelcast.backends._sandbox import Confined, Grant, Sandbox


class Line:
    """This program's ends: `memory`, a pipe for requests and one for replies.

    `poll` tells when there is a reply, or when the process has ended.
    """

    def __init__(self, size: int) -> None:
        memory_fd, self.memory = shared_memory(size)
        request_read, self.request_fd = os.pipe()
        self.reply_fd, self.reply_write = os.pipe()
        self._passed = (memory_fd, request_read, self.reply_write)
        self._open_fds = [self.request_fd, self.reply_fd]
        self.poll = select.poll()
        self.poll.register(self.reply_fd, select.POLLIN)

    def start(
        self,
        sandbox: Sandbox,
        task: str,
        arguments: Sequence[str],
        grant: Grant,
        folder: Path,
        environment: Mapping[str, str],
    ) -> Confined:
        """Start the process; its last arguments are its descriptors of memory and pipes."""
        try:
            process = sandbox.start(
                task,
                [*arguments, *map(str, self._passed)],
                grant,
                folder,
                environment=environment,
                pass_fds=self._passed,
            )
        except BaseException:
            self.close()
            raise
        finally:
            for fd in self._passed:
                os.close(fd)
        # A grandchild may hold the pipe open after the child's death: watch the process as well.
        self.poll.register(self.keep(os.pidfd_open(process.pid)), select.POLLIN)
        return process

    def keep(self, fd: int) -> int:
        """Close this descriptor with the pipes; return it."""
        self._open_fds.append(fd)
        return fd

    def read(self, ready: Sequence[tuple[int, int]], most: int) -> bytes:
        """The reply that is there; nothing if the process ended without one."""
        if any(fd == self.reply_fd for fd, _ in ready):
            return os.read(self.reply_fd, most)
        return b""

    def received(self, process: Confined, limit_s: float, most: int) -> bytes:
        """The reply that comes within a limit; nothing if there is none or the process ended."""
        ready = self.poll.poll(math.ceil(limit_s * 1e3))
        if not ready and limit_s > 0.0:
            ready = Patience(process.pid, limit_s).wait(self.poll)
        return self.read(ready, most)

    def close(self) -> None:
        """Close this program's ends; the memory goes with the last view of it."""
        while self._open_fds:
            os.close(self._open_fds.pop())


def hang_up(process: Confined, line: Line, owner: int) -> None:
    """Close the line, and end its process if this program has started it."""
    if os.getpid() == owner:
        process.end()
    line.close()
