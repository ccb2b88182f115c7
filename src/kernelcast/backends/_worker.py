"""The child that runs one kernel: a script for a bare interpreter that imports nothing of ours.

It loads one shared library, maps the memory it inherited and, for each request on its pipe, calls
the kernel with pointers into that memory and answers with the request's nonce. It holds no clock,
no expected output and no seed, and reports no times: the parent measures. Only a few modules of
the standard library are loaded, because it starts once for every measurement.

Request: little-endian int64s: nonce, stub, calls, stride, one offset an array, the dimensions.
Call i gets the arrays at i * stride + offset. With `stub`, libc's `abs` stands in for the kernel:
the same request without the work, from which the parent learns the overhead.
"""

import ctypes
import gc
import mmap
import os
import resource
import signal
import struct
import sys

LOAD_FAILED = 3
_PR_SET_PDEATHSIG = 1


def _limit(cpu_s: int, memory_bytes: int) -> None:
    """Bound what the kernel may take; 0 CPU seconds is a trusted child without limits."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not cpu_s:
        return
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(
    library: str,
    entry: str,
    arrays: int,
    dimensions: int,
    memory_fd: int,
    request_fd: int,
    reply_fd: int,
    cpu_s: int,
    memory_bytes: int,
) -> None:
    """Answer requests until the pipe is closed."""
    _limit(cpu_s, memory_bytes)
    gc.disable()
    memory = mmap.mmap(memory_fd, 0)
    os.close(memory_fd)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    try:
        kernel = getattr(ctypes.CDLL(library), entry)
    except (OSError, AttributeError):
        os._exit(LOAD_FAILED)
    stub = ctypes.CDLL(None).abs
    for function in (kernel, stub):
        function.argtypes = [ctypes.c_void_p] * arrays + [ctypes.c_int64] * dimensions
        function.restype = None
    request_format = struct.Struct(f"<{4 + arrays + dimensions}q")
    reply_format = struct.Struct("<q")
    os.write(reply_fd, reply_format.pack(0))
    while len(request := os.read(request_fd, request_format.size)) == request_format.size:
        nonce, use_stub, calls, stride, *rest = request_format.unpack(request)
        function = stub if use_stub else kernel
        extents = rest[arrays:]
        for call in range(calls):
            start = base + call * stride
            function(*[start + offset for offset in rest[:arrays]], *extents)
        os.write(reply_fd, reply_format.pack(nonce))


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
