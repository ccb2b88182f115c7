"""The child that speaks to OpenCL: compiles a kernel, or launches it, in a bare interpreter.

It calls the loader (libOpenCL.so.1) through ctypes, as `_cuda_worker` does the CUDA driver: a
binding would load NumPy and more into the kernel's own process, and start several times slower.
It holds no clock, no expected output and no seed; the parent times the `run` request from outside.

`probe` prints what devices there are. `compile_source` reads kernel.cl in its working folder and
writes kernel.bin and kernel.json, or prints the compiler's log. `main` launches what was compiled.
Request: little-endian int64s: nonce, phase, calls, stride, base, one offset an array, the
dimensions, and six extents: all work-items, and those of a group. Reply: nonce and OpenCL's
result, 0 for success.
stage   copy the slots to the device, and flush its cache
run     launch once a call, on the arrays at base + i * stride + offset, and wait for the device
idle    the same request without a launch, from which the parent learns the overhead
fetch   copy the slots back
seal    allow from now on only what a loaded kernel needs: on a CPU, it shares this process
"""
# pathlib takes 10 ms to import.
# ruff: noqa: PTH104, PTH123

import ctypes
import gc
import json
import mmap
import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # these modules would cost more to load than all the others
    from collections.abc import Iterator
    from typing import Any

STAGE, RUN, IDLE, FETCH, SEAL = range(5)
CONFINED, LOADED = -1, 0
LOAD_FAILED = 3
NO_DEVICE = 4

_ALL_DEVICES = 0xFFFFFFFF
_PLATFORM_VERSION, _PLATFORM_NAME = 0x0901, 0x0902
_DEVICE_TYPE, _COMPUTE_UNITS, _GROUP_SIZE, _CLOCK_MHZ = 0x1000, 0x1002, 0x1004, 0x100C
_CACHE_BYTES, _LOCAL_BYTES, _DEVICE_NAME, _DRIVER_VERSION = 0x101E, 0x1023, 0x102B, 0x102D
_IS_CPU = 2
_READ_WRITE = 1
_REGION = 0x1220
_BINARY_SIZES, _BINARIES, _BUILD_LOG = 0x1165, 0x1166, 0x1183
_ARGUMENTS, _ADDRESS_SPACE, _TYPE_NAME = 0x1191, 0x1196, 0x1198
_FIXED_GROUP, _LOCAL_OF_KERNEL, _PRIVATE_OF_KERNEL = 0x11B1, 0x11B2, 0x11B4


class OpenClError(Exception):
    """A call failed; the number is OpenCL's error code."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class OpenCl:
    """The functions of the loader: errors are raised, objects and facts returned."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libOpenCL.so.1")

    def call(self, name: str, *arguments: object) -> None:
        """Call a function that returns an error code."""
        if number := getattr(self._library, name)(*arguments):
            raise OpenClError(number)

    def make(self, name: str, *arguments: object) -> ctypes.c_void_p:
        """Call a function that returns an object, and its error code by its last argument."""
        function = getattr(self._library, name)
        function.restype = ctypes.c_void_p
        number = ctypes.c_int()
        made = function(*arguments, ctypes.byref(number))
        if number.value:
            raise OpenClError(number.value)
        return ctypes.c_void_p(made)

    def ask(self, name: str, *arguments: object) -> bytes:
        """What a function of the `clGet...Info` kind answers."""
        size = ctypes.c_size_t()
        self.call(name, *arguments, ctypes.c_size_t(0), None, ctypes.byref(size))
        value = ctypes.create_string_buffer(size.value)
        self.call(name, *arguments, size, value, None)
        return value.raw

    def ask_text(self, name: str, *arguments: object) -> str:
        """The same, of a string."""
        return self.ask(name, *arguments).partition(b"\0")[0].decode(errors="replace").strip()

    def ask_number(self, name: str, *arguments: object) -> int:
        """The same, of an unsigned number of whatever width."""
        return int.from_bytes(self.ask(name, *arguments), "little")

    def platforms(self) -> list[ctypes.c_void_p]:
        """All platforms; the loader calls it an error where there is none."""
        try:
            return self._listed("clGetPlatformIDs")
        except OpenClError:
            return []

    def devices(self, platform: ctypes.c_void_p) -> list[ctypes.c_void_p]:
        """All devices of a platform."""
        try:
            return self._listed("clGetDeviceIDs", platform, ctypes.c_uint64(_ALL_DEVICES))
        except OpenClError:
            return []

    def _listed(self, name: str, *arguments: object) -> list[ctypes.c_void_p]:
        count = ctypes.c_uint()
        self.call(name, *arguments, 0, None, ctypes.byref(count))
        found = (ctypes.c_void_p * count.value)()
        self.call(name, *arguments, count, found, None)
        return [ctypes.c_void_p(each) for each in found]


class Session:
    """One device with a context of its own."""

    def __init__(self, platform: int, index: int) -> None:
        self.opencl = OpenCl()
        self.device = self.opencl.devices(self.opencl.platforms()[platform])[index]
        one = (ctypes.c_void_p * 1)(self.device)
        self.context = self.opencl.make("clCreateContext", None, 1, one, None, None)

    def build(self, program: ctypes.c_void_p, options: str = "") -> None:
        """Compile, or link what was compiled."""
        self.opencl.call("clBuildProgram", program, 0, None, options.encode(), None, None)

    def kernel(self, program: ctypes.c_void_p, entry: str) -> ctypes.c_void_p:
        """The program's function of this name."""
        return self.opencl.make("clCreateKernel", program, entry.encode())


# ----------------------------------------------------------------------------------- compiling


def compile_source(arguments: list[str]) -> None:
    """Compile kernel.cl; status 1 and the compiler's words if that fails."""
    import _confine  # type: ignore[import-not-found]

    platform, index, entry, options = _confine.confined(arguments)
    session = Session(int(platform), int(index))
    opencl = session.opencl
    with open("kernel.cl", "rb") as file:
        text = file.read()
    sources = (ctypes.c_char_p * 1)(text)
    lengths = (ctypes.c_size_t * 1)(len(text))
    program = opencl.make("clCreateProgramWithSource", session.context, 1, sources, lengths)
    try:
        session.build(program, options)
    except OpenClError as error:
        log = opencl.ask_text("clGetProgramBuildInfo", program, session.device, _BUILD_LOG)
        sys.exit(log or f"OpenCL error {error.number}")
    try:
        kernel = session.kernel(program, entry)
    except OpenClError:
        sys.exit(f"there is no __kernel function {entry!r}")
    # PoCL makes code for the sizes of groups that its environment lists when it is asked for this.
    with open("kernel.bin.new", "wb") as file:
        file.write(_binary(opencl, program))
    os.rename("kernel.bin.new", "kernel.bin")  # another process may be reading it
    with open("kernel.json", "w") as file:
        json.dump(_facts_of_kernel(session, kernel), file)


def _binary(opencl: OpenCl, program: ctypes.c_void_p) -> bytes:
    size = opencl.ask_number("clGetProgramInfo", program, _BINARY_SIZES)
    code = ctypes.create_string_buffer(size)
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(code))
    opencl.call(
        "clGetProgramInfo",
        program,
        _BINARIES,
        ctypes.c_size_t(ctypes.sizeof(pointers)),
        pointers,
        None,
    )
    return code.raw


def _facts_of_kernel(session: Session, kernel: ctypes.c_void_p) -> "dict[str, Any]":
    opencl, device = session.opencl, session.device
    arguments = [
        (
            opencl.ask_number("clGetKernelArgInfo", kernel, index, _ADDRESS_SPACE),
            opencl.ask_text("clGetKernelArgInfo", kernel, index, _TYPE_NAME),
        )
        for index in range(opencl.ask_number("clGetKernelInfo", kernel, _ARGUMENTS))
    ]
    about = ("clGetKernelWorkGroupInfo", kernel, device)
    return {
        "arguments": arguments,
        "group": struct.unpack("<3Q", opencl.ask(*about, _FIXED_GROUP)),
        "local_bytes": opencl.ask_number(*about, _LOCAL_OF_KERNEL),
        "private_bytes": opencl.ask_number(*about, _PRIVATE_OF_KERNEL),
    }


# ----------------------------------------------------------------------------------- launching


class Launcher:
    """A loaded kernel with its queue, and a buffer on the device for all of the shared memory."""

    def __init__(
        self,
        memory: mmap.mmap,
        platform: int,
        index: int,
        binary: str,
        entry: str,
        widths: list[int],
        flush_bytes: int,
    ) -> None:
        session = Session(platform, index)
        self._opencl = session.opencl
        with open(binary, "rb") as file:
            code = file.read()
        one = (ctypes.c_void_p * 1)(session.device)
        codes = (ctypes.c_char_p * 1)(code)
        lengths = (ctypes.c_size_t * 1)(len(code))
        program = self._opencl.make(
            "clCreateProgramWithBinary", session.context, 1, one, lengths, codes, None
        )
        session.build(program)
        self._kernel = session.kernel(program, entry)
        self._queue = self._opencl.make(
            "clCreateCommandQueue", session.context, session.device, ctypes.c_uint64(0)
        )
        self._host = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._buffer = self._allocate(session, len(memory))
        self._flushed = self._allocate(session, flush_bytes) if flush_bytes else None
        self._flush_bytes = flush_bytes
        kinds = {4: ctypes.c_int32, 8: ctypes.c_int64}
        self._extents = [kinds[width]() for width in widths]
        self._slots: list[list[ctypes.c_void_p]] = []

    def _allocate(self, session: Session, size: int) -> ctypes.c_void_p:
        size_and_flags = (ctypes.c_uint64(_READ_WRITE), ctypes.c_size_t(size), None)
        return self._opencl.make("clCreateBuffer", session.context, *size_and_flags)

    def stage(self, calls: int, stride: int, base: int, offsets: list[int]) -> None:
        """Copy to the device, and cut out what each call's pointers point to."""
        for part in (each for slot in self._slots for each in slot):
            self._opencl.call("clReleaseMemObject", part)
        ends = [*offsets[1:], stride]
        self._slots = [
            [
                self._part(base + call * stride + offset, end - offset)
                for offset, end in zip(offsets, ends, strict=True)
            ]
            for call in range(calls)
        ]
        self._copy("clEnqueueWriteBuffer", base, calls * stride)
        if self._flushed is not None:
            self._opencl.call(
                "clEnqueueFillBuffer",
                *(self._queue, self._flushed, b"\0", ctypes.c_size_t(1)),
                *(ctypes.c_size_t(0), ctypes.c_size_t(self._flush_bytes), 0, None, None),
            )

    def _part(self, start: int, size: int) -> ctypes.c_void_p:
        region = (ctypes.c_size_t * 2)(start, size)
        flags = ctypes.c_uint64(0)
        return self._opencl.make("clCreateSubBuffer", self._buffer, flags, _REGION, region)

    def launch(self, extents: list[int], geometry: list[int], *, really: bool) -> None:
        """Hand over the arguments of each staged call, and queue its launch."""
        call = self._opencl.call
        everything = (ctypes.c_size_t * 3)(*geometry[:3])
        group = (ctypes.c_size_t * 3)(*geometry[3:])
        width = ctypes.c_size_t(ctypes.sizeof(ctypes.c_void_p))
        for number, extent in zip(self._extents, extents, strict=True):
            number.value = extent
        for slot in self._slots:
            for index, part in enumerate(slot):
                call("clSetKernelArg", self._kernel, index, width, ctypes.byref(part))
            for index, number in enumerate(self._extents, len(slot)):
                size = ctypes.c_size_t(ctypes.sizeof(number))
                call("clSetKernelArg", self._kernel, index, size, ctypes.byref(number))
            if really:
                call(
                    "clEnqueueNDRangeKernel",
                    *(self._queue, self._kernel, 3, None, everything, group, 0, None, None),
                )

    def fetch(self, base: int, size: int) -> None:
        """Copy back."""
        self._copy("clEnqueueReadBuffer", base, size)

    def _copy(self, direction: str, base: int, size: int) -> None:
        self._opencl.call(
            direction,
            *(self._queue, self._buffer, 0, ctypes.c_size_t(base), ctypes.c_size_t(size)),
            *(ctypes.c_void_p(self._host + base), 0, None, None),
        )

    def finish(self) -> None:
        """Wait until all that was queued is done."""
        self._opencl.call("clFinish", self._queue)


def main(arguments: list[str]) -> None:
    """Answer requests until the pipe is closed, or a call fails: after that it is no use."""
    import _confine

    policy = _confine.decode(arguments[0])
    stated, *numbers = _confine.confined(arguments)
    arrays, dimensions, memory_fd, request_fd, reply_fd = map(int, numbers)
    reply_format = struct.Struct("<qq")
    os.write(reply_fd, reply_format.pack(CONFINED, 0))
    gc.disable()
    memory = mmap.mmap(memory_fd, 0)
    os.close(memory_fd)
    try:
        launcher = Launcher(memory, **json.loads(stated))
    except OpenClError:
        os._exit(LOAD_FAILED)
    except (OSError, AttributeError, IndexError):
        os._exit(NO_DEVICE)
    request_format = struct.Struct(f"<{5 + arrays + dimensions + 6}q")
    os.write(reply_fd, reply_format.pack(LOADED, 0))
    while len(request := os.read(request_fd, request_format.size)) == request_format.size:
        nonce, phase, calls, stride, base, *rest = request_format.unpack(request)
        result = 0
        try:
            if phase == STAGE:
                launcher.stage(calls, stride, base, rest[:arrays])
            elif phase in (RUN, IDLE):
                launcher.launch(rest[arrays:-6], rest[-6:], really=phase == RUN)
            elif phase == FETCH:
                launcher.fetch(base, calls * stride)
            elif phase == SEAL:
                _confine.seal(policy, reply_fd)
            launcher.finish()
        except OpenClError as error:
            result = error.number
        os.write(reply_fd, reply_format.pack(nonce, result))


# ------------------------------------------------------------------------------------- probing


def probe(arguments: list[str]) -> None:
    """Print what devices there are, as JSON."""
    import _confine

    _confine.confined(arguments)
    try:
        found = list(_found_devices(OpenCl()))
    except OSError:
        os._exit(NO_DEVICE)
    print(json.dumps(found))  # noqa: T201  (this is the answer)


def _found_devices(opencl: OpenCl) -> "Iterator[dict[str, Any]]":
    for at, platform in enumerate(opencl.platforms()):
        about_platform = ("clGetPlatformInfo", platform)
        for index, device in enumerate(opencl.devices(platform)):
            about = ("clGetDeviceInfo", device)
            yield {
                "platform": at,
                "index": index,
                "platform_name": opencl.ask_text(*about_platform, _PLATFORM_NAME),
                "platform_version": opencl.ask_text(*about_platform, _PLATFORM_VERSION),
                "name": opencl.ask_text(*about, _DEVICE_NAME),
                "driver": opencl.ask_text(*about, _DRIVER_VERSION),
                "is_cpu": bool(opencl.ask_number(*about, _DEVICE_TYPE) & _IS_CPU),
                "units": opencl.ask_number(*about, _COMPUTE_UNITS),
                "clock_mhz": opencl.ask_number(*about, _CLOCK_MHZ),
                "most_items": opencl.ask_number(*about, _GROUP_SIZE),
                "cache_bytes": opencl.ask_number(*about, _CACHE_BYTES),
                "local_bytes": opencl.ask_number(*about, _LOCAL_BYTES),
            }
