"""The child that runs one kernel: a script for a bare interpreter that imports nothing of ours.

It puts the sandbox in force (`_confine`) and says so, maps the memory it inherited and waits until
a byte on its pipe tells that the library is there: a process may be started before it is known
which kernel it will run. It loads that library, seals itself against every system call that no
kernel needs and, for each request, calls the kernel with pointers into that memory and answers
with the request's nonce.
It holds no clock, no expected output and no seed, and reports no times: the parent measures. Only
a few modules of the standard library are loaded, because it starts once for every measurement.

Request: little-endian int64s: nonce, stub, calls, stride, one offset an array, the dimensions.
Call i gets the arrays at i * stride + offset. With `stub`, libc's `abs` stands in for the kernel:
the same request without the work, from which the parent learns the overhead. Reply: nonce and 0.
"""

import ctypes
import gc
import mmap
import os
import struct

CONFINED = -1
LOADED = 0
LOAD_FAILED = 3


def main(arguments: list[str]) -> None:
    """Serve under the policy in the first argument; started by `_sandbox` with its folder on the
    path, which is why `_confine` is imported only here.
    """
    import _confine  # type: ignore[import-not-found]

    encoded, library, entry, *numbers = arguments
    policy = _confine.decode(encoded)
    for _ in _confine.enforce(policy):
        pass
    arrays, dimensions, memory_fd, request_fd, reply_fd = map(int, numbers)
    reply_format = struct.Struct("<qq")
    os.write(reply_fd, reply_format.pack(CONFINED, 0))
    gc.disable()
    # All pages at once: a page that is first touched in a timed call would cost it a fault.
    memory = mmap.mmap(memory_fd, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    os.close(memory_fd)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    os.read(request_fd, 1)
    try:
        kernel = getattr(ctypes.CDLL(library), entry)
    except (OSError, AttributeError):
        os._exit(LOAD_FAILED)
    stub = ctypes.CDLL(None).abs
    for function in (kernel, stub):
        function.argtypes = [ctypes.c_void_p] * arrays + [ctypes.c_int64] * dimensions
        function.restype = None
    request_format = struct.Struct(f"<{4 + arrays + dimensions}q")
    _confine.seal(policy, reply_fd)
    os.write(reply_fd, reply_format.pack(LOADED, 0))
    while len(request := os.read(request_fd, request_format.size)) == request_format.size:
        nonce, use_stub, calls, stride, *rest = request_format.unpack(request)
        function = stub if use_stub else kernel
        extents = rest[arrays:]
        for call in range(calls):
            start = base + call * stride
            function(*[start + offset for offset in rest[:arrays]], *extents)
        os.write(reply_fd, reply_format.pack(nonce, 0))
