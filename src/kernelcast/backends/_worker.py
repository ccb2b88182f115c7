"""The child that runs one kernel: a script for a bare interpreter that imports nothing of ours.

It puts the sandbox in force (`_confine`), maps the memory that it inherited, and waits for a byte
on its pipe: a process may be started before its kernel is known. It then loads the library, which
seals the process against every system call that no kernel needs, and leaves the rest to the native
stub (`_stub.c`): for each request, that calls the kernel with pointers into the memory. The process
holds no clock, no expected output and no seed, and reports no times: the parent measures. It loads
few modules, because it starts once for every measurement.

Request: idle, calls, stride, one offset an array, the dimensions. Call i gets the arrays at
i * stride + offset. An idle request is the same without the work.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CONFINED = -1
LOADED = 0
LOAD_FAILED = 3


class Service:
    """A worker's end of its pipes, and the memory that it shares with the parent.

    Its last arguments are the number of words in a request and the descriptors of memory, requests
    and replies. A request is a nonce and so many words; a reply is the nonce and a result, 0 for
    success. All are little-endian int64s.
    """

    def __init__(self, numbers: list[str], flags: int = 0) -> None:
        words, memory_fd, self.request_fd, self.reply_fd = map(int, numbers)
        self._request = struct.Struct(f"<{1 + words}q")
        self._reply(CONFINED)
        gc.disable()
        self.memory = mmap.mmap(memory_fd, 0, flags=mmap.MAP_SHARED | flags)
        os.close(memory_fd)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def wait(self) -> None:
        """Wait until the parent has looked at this process, and the library is there."""
        os.read(self.request_fd, 1)

    def loaded(self) -> None:
        """Say that the kernel is loaded."""
        self._reply(LOADED)

    def serve(self, answer: Callable[..., int]) -> None:
        """Say that the kernel is loaded; then answer requests until the pipe is closed."""
        self.loaded()
        while len(request := os.read(self.request_fd, self._request.size)) == self._request.size:
            nonce, *words = self._request.unpack(request)
            self._reply(nonce, answer(*words))

    def _reply(self, nonce: int, result: int = 0) -> None:
        os.write(self.reply_fd, struct.pack("<qq", nonce, result))


def main(arguments: list[str]) -> None:
    """Serve under the policy in the first argument."""
    import _confine  # type: ignore[import-not-found]  # `_sandbox` puts this folder on the path

    native, library, entry, arrays, dimensions, *numbers = _confine.confined(arguments)
    # All pages at once: the first touch of a page in a timed call would cost a fault.
    service = Service(numbers, mmap.MAP_POPULATE)
    serve_calls = ctypes.CDLL(native).serve_calls
    service.wait()
    try:
        kernel = getattr(ctypes.CDLL(library), entry)
    except (OSError, AttributeError):
        os._exit(LOAD_FAILED)
    service.loaded()
    pipes = ctypes.c_long(service.request_fd), ctypes.c_long(service.reply_fd)
    counts = ctypes.c_long(int(arrays)), ctypes.c_long(int(dimensions))
    serve_calls(kernel, *counts, ctypes.c_void_p(service.address), *pipes)
    os._exit(0)  # a sealed interpreter cannot end in its own way
