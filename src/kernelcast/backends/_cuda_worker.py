"""The child that launches one CUDA kernel: a script for a bare interpreter, like `_worker`.

It speaks to the driver (libcuda.so.1) through ctypes. No host code of a candidate runs here: what
it loads is a cubin, which can only compute on the device. It holds no clock, no expected output
and no seed; the parent times the `run` request from outside. This code has been exercised against
a stand-in driver only and has not run on a GPU yet: `pytest -m gpu` is what an owner of one runs.

Its second argument is JSON: a list of functions, one a way that a case needs the kernel compiled.
Request: little-endian int64s: nonce, which function, phase, calls, stride, base, one offset an
array, the dimensions, and six extents: of the grid and of the block. Reply: nonce and the driver's
result, 0 for success.
stage   load the module anew (its variables forget), copy the slots to the device, flush the cache
run     launch once a call, on the arrays at base + i * stride + offset, and wait for the device
idle    the same request without a launch, from which the parent learns the overhead
fetch   copy the slots back
"""

import ctypes
import gc
import json
import mmap
import os
import struct

STAGE, RUN, IDLE, FETCH = range(4)
CONFINED, LOADED = -1, 0
LOAD_FAILED = 3
NO_DRIVER = 4
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_...


class DriverError(Exception):
    """A call to the driver failed; the number is its CUresult."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Driver:
    """The first device, with its primary context current in this thread."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.device = device

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver, or raise what it returns."""
        if number := getattr(self._library, name)(*arguments):
            raise DriverError(number)

    def enter(self) -> None:
        """Make the primary context current; memory and modules belong to it."""
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.call("cuCtxSetCurrent", context)

    def allocate(self, size: int) -> int:
        """Bytes on the device."""
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value

    def describe(self) -> str:
        """Name and compute capability."""
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, 256, self.device)
        numbers = []
        for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
            number = ctypes.c_int()
            self.call("cuDeviceGetAttribute", ctypes.byref(number), attribute, self.device)
            numbers.append(number.value)
        return f"sm_{numbers[0]}{numbers[1]} {name.value.decode()}"


class Function:
    """The entry of a module, loaded anew on demand, and room for the parameters of a launch."""

    def __init__(
        self, driver: Driver, cubin: str, entry: str, widths: list[int], shared: int
    ) -> None:
        self._driver = driver
        with open(cubin, "rb") as file:  # noqa: PTH123  (pathlib takes 10 ms to import)
            self._cubin = file.read()
        self._entry = entry.encode()
        self._shared = shared
        self._module = ctypes.c_void_p()
        self._handle = ctypes.c_void_p()
        kinds = {4: ctypes.c_int32, 8: ctypes.c_int64}
        self._parameters = [kinds[width]() for width in widths]
        addresses = [ctypes.addressof(each) for each in self._parameters]
        self._addresses = (ctypes.c_void_p * len(addresses))(*addresses)

    def load(self) -> None:
        """Load the module, in place of the one loaded before."""
        call = self._driver.call
        if self._module:
            call("cuModuleUnload", self._module)
        call("cuModuleLoadData", ctypes.byref(self._module), self._cubin)
        call("cuModuleGetFunction", ctypes.byref(self._handle), self._module, self._entry)
        if self._shared:
            call("cuFuncSetAttribute", self._handle, _MAX_DYNAMIC_SHARED, self._shared)

    def launch(self, values: list[int], geometry: list[int]) -> None:
        """Queue one launch; parameters beyond `values` stay null (Triton's scratch memory)."""
        for parameter, value in zip(self._parameters, values, strict=False):
            parameter.value = value
        self._driver.call(
            "cuLaunchKernel", self._handle, *geometry, self._shared, None, self._addresses, None
        )


def main(arguments: list[str]) -> None:
    """Answer requests until the pipe is closed, or the driver fails: after that it is no use."""
    import _confine  # type: ignore[import-not-found]

    functions, *numbers = _confine.confined(arguments)
    arrays, dimensions, flush_bytes, memory_fd, request_fd, reply_fd = map(int, numbers)
    reply_format = struct.Struct("<qq")
    os.write(reply_fd, reply_format.pack(CONFINED, 0))
    gc.disable()
    memory = mmap.mmap(memory_fd, 0)
    os.close(memory_fd)
    host = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    driver = _driver_or_exit()
    driver.enter()
    loaded = [Function(driver, **stated) for stated in json.loads(functions)]
    try:
        for function in loaded:
            function.load()
    except DriverError:
        os._exit(LOAD_FAILED)
    device = driver.allocate(len(memory))
    flushed = driver.allocate(flush_bytes)
    request_format = struct.Struct(f"<{6 + arrays + dimensions + 6}q")
    os.write(reply_fd, reply_format.pack(LOADED, 0))
    while len(request := os.read(request_fd, request_format.size)) == request_format.size:
        nonce, which, phase, calls, stride, base, *rest = request_format.unpack(request)
        offsets, extents = rest[:arrays], rest[arrays : arrays + dimensions]
        size = ctypes.c_size_t(calls * stride)
        here, there = ctypes.c_void_p(host + base), ctypes.c_uint64(device + base)
        result = 0
        try:
            if phase == STAGE:
                loaded[which].load()
                driver.call("cuMemcpyHtoD_v2", there, here, size)
                driver.call(
                    "cuMemsetD8_v2", ctypes.c_uint64(flushed), 0, ctypes.c_size_t(flush_bytes)
                )
            elif phase == RUN:
                for call in range(calls):
                    start = device + base + call * stride
                    loaded[which].launch([*[start + each for each in offsets], *extents], rest[-6:])
            elif phase == FETCH:
                driver.call("cuMemcpyDtoH_v2", here, there, size)
            driver.call("cuCtxSynchronize")
        except DriverError as error:
            result = error.number
        os.write(reply_fd, reply_format.pack(nonce, result))


def probe(arguments: list[str]) -> None:
    """Print the first device's target and name."""
    import _confine

    _confine.confined(arguments)
    print(_driver_or_exit().describe())  # noqa: T201  (this is the answer)


def _driver_or_exit() -> Driver:
    try:
        return Driver()
    except (OSError, AttributeError, DriverError):
        os._exit(NO_DRIVER)
