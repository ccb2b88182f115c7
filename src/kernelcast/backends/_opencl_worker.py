"""The child process that calls OpenCL: it compiles a kernel or launches it.

It runs in a bare interpreter and calls the loader (libOpenCL.so.1) through ctypes: a binding would
load NumPy into the kernel's process and start several times slower. It holds no clock, no expected
output and no seed; the parent times requests from outside.

`probe` prints the devices. `compile_source` reads kernel.cl in its working folder and writes
kernel.bin and kernel.json, or prints the compiler's log. Two functions launch what was compiled.

`serve_on_cpu`: the kernel is native code in this process and works on the shared memory itself.
PoCL loads the code at the first launch, and the process is sealed before. From then on the native
stub (`_stub.c`) serves: it launches once a call, or in an idle request a kernel that does nothing.

`serve_device`: the kernel runs on a device. Request: phase, calls, stride, base, one offset an
array, the dimensions, and six extents: all work-items, and those of a group. Result: OpenCL's, 0
for success.
stage   copy the slots to the device, and flush its cache
run     launch once a call, on the arrays at base + i * stride + offset, and wait for the device
idle    the same request without a launch, from which the parent learns the overhead
fetch   copy the slots back
"""
# pathlib takes 10 ms to import.
# ruff: noqa: PTH104, PTH123

import ctypes
import json
import mmap
import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing these costs more than all other modules together
    from typing import Any

STAGE, RUN, IDLE, FETCH = range(4)
LOAD_FAILED = 3
NO_DEVICE = 4

# The functions that `_stub.c` calls.
_USED = ("clSetKernelArgSVMPointer", "clSetKernelArg", "clEnqueueNDRangeKernel", "clFinish")

# Constants of CL/cl.h.
_ALL_DEVICES = 0xFFFFFFFF
_READ_WRITE = 1
_REGION = 0x1220
_BINARY_SIZES, _BINARIES, _BUILD_LOG = 0x1165, 0x1166, 0x1183
_ARGUMENTS, _ADDRESS_SPACE, _TYPE_NAME = 0x1191, 0x1196, 0x1198
_FIXED_GROUP, _LOCAL_OF_KERNEL, _PRIVATE_OF_KERNEL = 0x11B1, 0x11B2, 0x11B4
_PLATFORM_TEXTS = {"platform_version": 0x0901, "platform_name": 0x0902}
_DEVICE_TEXTS = {"name": 0x102B, "driver": 0x102D}
_DEVICE_NUMBERS = {
    "kind": 0x1000,
    "units": 0x1002,
    "most_items": 0x1004,
    "clock_mhz": 0x100C,
    "cache_bytes": 0x101E,
    "local_bytes": 0x1023,
}
_SHARED_MEMORY = 0x1053


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
        """The answer of a function of the `clGet...Info` kind."""
        size = ctypes.c_size_t()
        self.call(name, *arguments, ctypes.c_size_t(0), None, ctypes.byref(size))
        value = ctypes.create_string_buffer(size.value)
        self.call(name, *arguments, size, value, None)
        return value.raw

    def ask_text(self, name: str, *arguments: object) -> str:
        """The answer as a string."""
        return self.ask(name, *arguments).partition(b"\0")[0].decode(errors="replace").strip()

    def ask_number(self, name: str, *arguments: object) -> int:
        """The answer as an unsigned number of any width."""
        return int.from_bytes(self.ask(name, *arguments), "little")

    def devices(self) -> "list[tuple[ctypes.c_void_p, list[ctypes.c_void_p]]]":
        """All platforms, each with its devices."""
        every = ctypes.c_uint64(_ALL_DEVICES)
        return [
            (platform, self._listed("clGetDeviceIDs", platform, every))
            for platform in self._listed("clGetPlatformIDs")
        ]

    def _listed(self, name: str, *arguments: object) -> list[ctypes.c_void_p]:
        count = ctypes.c_uint()
        try:
            self.call(name, *arguments, 0, None, ctypes.byref(count))
            handles = (ctypes.c_void_p * count.value)()
            self.call(name, *arguments, count, handles, None)
        except OpenClError:  # the loader's answer where there is none
            return []
        return [ctypes.c_void_p(handle) for handle in handles]


class Session(OpenCl):
    """One device with a context of its own."""

    def __init__(self, platform: int, index: int) -> None:
        super().__init__()
        self.device = self.devices()[platform][1][index]
        self.one_device = (ctypes.c_void_p * 1)(self.device)
        self.context = self.make("clCreateContext", None, 1, self.one_device, None, None)

    def build(self, program: ctypes.c_void_p, options: str = "") -> None:
        """Compile, or link what was compiled."""
        self.call("clBuildProgram", program, 0, None, options.encode(), None, None)

    def kernel(self, program: ctypes.c_void_p, entry: str) -> ctypes.c_void_p:
        """The program's function of this name."""
        return self.make("clCreateKernel", program, entry.encode())

    def load(self, binary: str, entry: str) -> ctypes.c_void_p:
        """The function of this name of a program that was compiled before."""
        with open(binary, "rb") as file:
            code = file.read()
        codes = (ctypes.c_char_p * 1)(code)
        lengths = (ctypes.c_size_t * 1)(len(code))
        program = self.make(
            "clCreateProgramWithBinary", self.context, 1, self.one_device, lengths, codes, None
        )
        self.build(program)
        return self.kernel(program, entry)

    def queue_of_commands(self) -> ctypes.c_void_p:
        """A queue in which commands run in order."""
        no_properties = ctypes.c_uint64(0)
        return self.make("clCreateCommandQueue", self.context, self.device, no_properties)

    def address(self, name: str) -> "int | None":
        """Where a function of the loader is."""
        return ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value


def compile_source(arguments: list[str]) -> None:
    """Compile kernel.cl; if that fails, exit with status 1 and print the compiler's log."""
    import _confine  # type: ignore[import-not-found]

    platform, index, entry, options = _confine.confined(arguments)
    session = Session(int(platform), int(index))
    with open("kernel.cl", "rb") as file:
        text = file.read()
    sources = (ctypes.c_char_p * 1)(text)
    lengths = (ctypes.c_size_t * 1)(len(text))
    program = session.make("clCreateProgramWithSource", session.context, 1, sources, lengths)
    try:
        session.build(program, options)
    except OpenClError as error:
        log = session.ask_text("clGetProgramBuildInfo", program, session.device, _BUILD_LOG)
        sys.exit(log or f"OpenCL error {error.number}")
    try:
        kernel = session.kernel(program, entry)
    except OpenClError:
        sys.exit(f"there is no __kernel function {entry!r}")
    # Asked for its binary, PoCL makes code for the group sizes that its environment lists.
    size = session.ask_number("clGetProgramInfo", program, _BINARY_SIZES)
    code = ctypes.create_string_buffer(size)
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(code))
    width = ctypes.c_size_t(ctypes.sizeof(pointers))
    session.call("clGetProgramInfo", program, _BINARIES, width, pointers, None)
    with open("kernel.bin.new", "wb") as file:
        file.write(code.raw)
    os.rename("kernel.bin.new", "kernel.bin")  # another process may be reading it
    with open("kernel.json", "w") as file:
        json.dump(_facts_of_kernel(session, kernel), file)


def _facts_of_kernel(session: Session, kernel: ctypes.c_void_p) -> "dict[str, Any]":
    group_info = ("clGetKernelWorkGroupInfo", kernel, session.device)
    return {
        "arguments": [
            (
                session.ask_number("clGetKernelArgInfo", kernel, index, _ADDRESS_SPACE),
                session.ask_text("clGetKernelArgInfo", kernel, index, _TYPE_NAME),
            )
            for index in range(session.ask_number("clGetKernelInfo", kernel, _ARGUMENTS))
        ],
        "group": struct.unpack("<3Q", session.ask(*group_info, _FIXED_GROUP)),
        "local_bytes": session.ask_number(*group_info, _LOCAL_OF_KERNEL),
        "private_bytes": session.ask_number(*group_info, _PRIVATE_OF_KERNEL),
    }


class Launcher(Session):
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
        super().__init__(platform, index)
        self._kernel = self.load(binary, entry)
        self.queue = self.queue_of_commands()
        self._host = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._buffer = self._allocate(len(memory))
        self._flushed = self._allocate(flush_bytes) if flush_bytes else None
        self._flush_bytes = flush_bytes
        kinds = {4: ctypes.c_int32, 8: ctypes.c_int64}
        self._extents = [kinds[width]() for width in widths]
        self._slots: list[list[ctypes.c_void_p]] = []

    def _allocate(self, size: int) -> ctypes.c_void_p:
        flags = ctypes.c_uint64(_READ_WRITE)
        return self.make("clCreateBuffer", self.context, flags, ctypes.c_size_t(size), None)

    def stage(self, calls: int, stride: int, base: int, offsets: tuple[int, ...]) -> None:
        """Copy to the device, and cut out what each call's pointers point to."""
        for slot in self._slots:
            for part in slot:
                self.call("clReleaseMemObject", part)
        ends = [*offsets[1:], stride]
        self._slots = [
            [
                self._part(base + call * stride + offset, end - offset)
                for offset, end in zip(offsets, ends, strict=True)
            ]
            for call in range(calls)
        ]
        self.copy("clEnqueueWriteBuffer", base, calls * stride)
        if self._flushed is not None:
            self.call(
                "clEnqueueFillBuffer",
                *(self.queue, self._flushed, b"\0", ctypes.c_size_t(1)),
                *(ctypes.c_size_t(0), ctypes.c_size_t(self._flush_bytes), 0, None, None),
            )

    def _part(self, start: int, size: int) -> ctypes.c_void_p:
        region = (ctypes.c_size_t * 2)(start, size)
        return self.make("clCreateSubBuffer", self._buffer, ctypes.c_uint64(0), _REGION, region)

    def launch(self, extents: tuple[int, ...], geometry: tuple[int, ...], *, really: bool) -> None:
        """Hand over the arguments of each staged call, and queue its launch."""
        call = self.call
        all_items = (ctypes.c_size_t * 3)(*geometry[:3])
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
                    *(self.queue, self._kernel, 3, None, all_items, group, 0, None, None),
                )

    def copy(self, direction: str, base: int, size: int) -> None:
        """Copy between the shared memory and the device."""
        self.call(
            direction,
            *(self.queue, self._buffer, 0, ctypes.c_size_t(base), ctypes.c_size_t(size)),
            *(ctypes.c_void_p(self._host + base), 0, None, None),
        )


def serve_on_cpu(arguments: list[str]) -> None:
    """Load, seal the process, and let the stub answer requests until the pipe is closed."""
    import _confine
    import _worker  # type: ignore[import-not-found]

    policy = _confine.decode(arguments[0])
    native, program, arrays, *numbers = _confine.confined(arguments)
    facts = json.loads(program)
    # All pages at once: the first touch of a page in a timed call would cost a fault.
    service = _worker.Service(numbers, mmap.MAP_POPULATE)
    try:
        session = Session(facts["platform"], facts["index"])
        kernels = [session.load(binary, entry) for binary, entry in facts["kernels"]]
        queue = session.queue_of_commands()
        opencl = (ctypes.c_void_p * 7)(*map(session.address, _USED), queue, *kernels)
        serve_launches = ctypes.CDLL(native).serve_launches
    except OpenClError:
        os._exit(LOAD_FAILED)
    except (OSError, AttributeError, IndexError):
        os._exit(NO_DEVICE)
    widths = facts["widths"]
    sizes = (ctypes.c_longlong * len(widths))(*widths)
    service.wait()
    _confine.seal(policy, service.reply_fd)
    service.loaded()
    counts = ctypes.c_long(int(arrays)), ctypes.c_long(len(widths))
    pipes = ctypes.c_long(service.request_fd), ctypes.c_long(service.reply_fd)
    serve_launches(opencl, *counts, sizes, ctypes.c_void_p(service.address), *pipes)
    os._exit(0)  # a sealed interpreter cannot end in its own way


def serve_device(arguments: list[str]) -> None:
    """Answer requests until the pipe is closed or a call fails."""
    import _confine
    import _worker

    program, arrays, *numbers = _confine.confined(arguments)
    pointers = int(arrays)
    service = _worker.Service(numbers)
    try:
        launcher = Launcher(service.memory, **json.loads(program))
    except OpenClError:
        os._exit(LOAD_FAILED)
    except (OSError, AttributeError, IndexError):
        os._exit(NO_DEVICE)

    def answer(phase: int, calls: int, stride: int, base: int, *rest: int) -> int:
        try:
            if phase == STAGE:
                launcher.stage(calls, stride, base, rest[:pointers])
            elif phase in (RUN, IDLE):
                launcher.launch(rest[pointers:-6], rest[-6:], really=phase == RUN)
            elif phase == FETCH:
                launcher.copy("clEnqueueReadBuffer", base, calls * stride)
            launcher.call("clFinish", launcher.queue)
        except OpenClError as error:
            return error.number
        return 0

    service.serve(answer)


def probe(arguments: list[str]) -> None:
    """Print the devices as JSON."""
    import _confine

    _confine.confined(arguments)
    try:
        opencl = OpenCl()
    except OSError:
        os._exit(NO_DEVICE)
    facts = [
        {"platform": number, "index": index, **_facts_of_device(opencl, platform, device)}
        for number, (platform, devices) in enumerate(opencl.devices())
        for index, device in enumerate(devices)
    ]
    print(json.dumps(facts))  # noqa: T201  (this is the answer)


def _facts_of_device(
    opencl: OpenCl, platform: ctypes.c_void_p, device: ctypes.c_void_p
) -> "dict[str, Any]":
    facts: dict[str, Any] = {}
    for name, code in _PLATFORM_TEXTS.items():
        facts[name] = opencl.ask_text("clGetPlatformInfo", platform, code)
    for name, code in _DEVICE_TEXTS.items():
        facts[name] = opencl.ask_text("clGetDeviceInfo", device, code)
    for name, code in _DEVICE_NUMBERS.items():
        facts[name] = opencl.ask_number("clGetDeviceInfo", device, code)
    try:
        facts["shared_memory"] = opencl.ask_number("clGetDeviceInfo", device, _SHARED_MEMORY)
    except OpenClError:  # OpenCL 1
        facts["shared_memory"] = 0
    return facts
