"""The child that launches one CUDA kernel: a script for a bare interpreter, like `_worker`.

It calls the driver (libcuda.so.1) through ctypes. No host code of a candidate runs here: it loads
a cubin, which can only compute on the device. It holds no clock, no expected output and no seed;
the parent times the `run` request from outside. This code has run against a stand-in driver only
and never on a GPU: `pytest -m gpu` is for owners of one.

Its second argument is a JSON list of functions: the kernel as each group of cases compiles it.
Request: which function, phase, calls, stride, base, one offset an array, the dimensions, and six
extents: of the grid and of the block. Result: the driver's, 0 for success.
stage   load the module again (its variables are reset), copy the slots in, and flush the cache
run     launch once a call, on the arrays at base + i * stride + offset, and wait for the device
idle    the same request without a launch, from which the parent learns the overhead
fetch   copy the slots back
"""

import ctypes
import json
import os

STAGE, RUN, IDLE, FETCH = range(4)
LOAD_FAILED = 3
NO_DRIVER = 4
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_...


class DriverError(Exception):
    """A call to the driver failed; `number` is its CUresult."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Driver:
    """The first device. Raises `DriverError`, or `OSError` without a driver."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)

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
        """Allocate bytes on the device, and return their address."""
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value

    def describe(self) -> str:
        """Target and name of the device."""
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, 256, self.device)
        number, digits = ctypes.c_int(), ""
        for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
            self.call("cuDeviceGetAttribute", ctypes.byref(number), attribute, self.device)
            digits += str(number.value)
        return f"sm_{digits} {name.value.decode()}"


class Function:
    """The entry of a module that can be loaded again, and the parameters of a launch."""

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
        addresses = map(ctypes.addressof, self._parameters)
        self._addresses = (ctypes.c_void_p * len(widths))(*addresses)

    def load(self) -> None:
        """Load the module, in place of the one loaded before."""
        call = self._driver.call
        if self._module:
            call("cuModuleUnload", self._module)
        call("cuModuleLoadData", ctypes.byref(self._module), self._cubin)
        call("cuModuleGetFunction", ctypes.byref(self._handle), self._module, self._entry)
        if self._shared:
            call("cuFuncSetAttribute", self._handle, _MAX_DYNAMIC_SHARED, self._shared)

    def launch(self, values: list[int], geometry: tuple[int, ...]) -> None:
        """Queue one launch; parameters beyond `values` stay null (Triton's scratch memory)."""
        for parameter, value in zip(self._parameters, values, strict=False):
            parameter.value = value
        self._driver.call(
            "cuLaunchKernel", self._handle, *geometry, self._shared, None, self._addresses, None
        )


def main(arguments: list[str]) -> None:
    """Answer requests until the pipe is closed, or the driver fails: after that it is no use."""
    import _confine  # type: ignore[import-not-found]
    import _worker  # type: ignore[import-not-found]

    programs, arrays, flush_size, *numbers = _confine.confined(arguments)
    pointers, flush_bytes = int(arrays), ctypes.c_size_t(int(flush_size))
    service = _worker.Service(numbers)
    driver = _driver_or_exit()
    driver.enter()
    functions = [Function(driver, **program) for program in json.loads(programs)]
    try:
        for function in functions:
            function.load()
    except DriverError:
        os._exit(LOAD_FAILED)
    device = driver.allocate(len(service.memory))
    flushed = ctypes.c_uint64(driver.allocate(flush_bytes.value))

    def answer(which: int, phase: int, calls: int, stride: int, base: int, *rest: int) -> int:
        size = ctypes.c_size_t(calls * stride)
        here, there = ctypes.c_void_p(service.address + base), ctypes.c_uint64(device + base)
        try:
            if phase == STAGE:
                functions[which].load()
                driver.call("cuMemcpyHtoD_v2", there, here, size)
                driver.call("cuMemsetD8_v2", flushed, 0, flush_bytes)
            elif phase == RUN:
                for call in range(calls):
                    start = device + base + call * stride
                    addresses = [start + offset for offset in rest[:pointers]]
                    functions[which].launch([*addresses, *rest[pointers:-6]], rest[-6:])
            elif phase == FETCH:
                driver.call("cuMemcpyDtoH_v2", here, there, size)
            driver.call("cuCtxSynchronize")
        except DriverError as error:
            return error.number
        return 0

    service.serve(answer)


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
