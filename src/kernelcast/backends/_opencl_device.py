"""The OpenCL devices that are here, and the processes that launch kernels on one of them."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelcast.backends import _opencl_worker
from kernelcast.backends._child import Child
from kernelcast.backends._launch import Launch, LaunchingChild, driver_grant, no_launch
from kernelcast.backends._sandbox import Sandbox
from kernelcast.devices import detect_cpu
from kernelcast.errors import NoDevice
from kernelcast.types import Device, Failure, FailureKind

INSTALL = "apt-get install ocl-icd-libopencl1 pocl-opencl-icd"
"""How a machine without a GPU gets the library `libOpenCL.so.1` and a device."""

# What an OpenCL library reads beside the system's own folders; PoCL asks for processor and memory.
READABLE = tuple(
    path for path in map(Path, ("/etc/OpenCL", "/proc/cpuinfo", "/proc/meminfo")) if path.exists()
)
_PROBE_TIMEOUT_S = 30.0
_IS_CPU = 2  # a bit of CL_DEVICE_TYPE
_ALL_MEMORY = 4  # a bit of CL_DEVICE_SVM_CAPABILITIES
_REFUSED_LAUNCHES = {
    -4: "no memory for it",
    -5: "out of resources",
    -54: "not with groups of this size",
    -55: "not with work-items of this extent",
    -63: "not with as many work-items",
}


@dataclass(frozen=True)
class DeviceFacts:
    """Facts of one device, from an OpenCL library; `kind` is CL_DEVICE_TYPE."""

    platform: int
    index: int
    platform_name: str
    platform_version: str
    name: str
    driver: str
    kind: int
    units: int
    clock_mhz: int
    most_items: int
    cache_bytes: int
    local_bytes: int
    shared_memory: int = 0

    @property
    def is_cpu(self) -> bool:
        """Whether kernels run on the CPU."""
        return bool(self.kind & _IS_CPU)

    @property
    def is_pocl(self) -> bool:
        """Whether this is PoCL, whose cache of compiled code is prepared and read here."""
        return self.platform_name == "Portable Computing Language"

    @property
    def shares_memory(self) -> bool:
        """Whether kernels can work on any memory of the process."""
        return self.is_pocl or bool(self.shared_memory & _ALL_MEMORY)

    def as_device(self) -> Device:
        """The detected CPU, or a GPU without its peaks, which OpenCL does not know."""
        if self.is_cpu:
            cpu = detect_cpu()
            cores = min(cpu.cores, self.units)
            return cpu.model_copy(update={"name": self.name, "cores": cores})
        return Device(
            name=self.name,
            kind="gpu",
            cores=self.units,
            clock_hz=self.clock_mhz * 1e6,
            peak_flops={},
            bandwidth_bytes_s=0.0,
            source="OpenCL, which does not tell peaks: name the device for a roofline",
            cache_bytes=self.cache_bytes,
            shared_bytes_per_block=self.local_bytes,
        )


def opencl_devices(sandbox: Sandbox) -> list[DeviceFacts]:
    """All OpenCL devices here, asked for in a confined child; none without a library."""
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryFile() as output:
        folder = Path(name) / "probe"
        folder.mkdir()
        sandbox.own(folder)
        grant = driver_grant("compile", *READABLE, writable=(folder,))
        environment = {"POCL_CACHE_DIR": str(folder)}
        process = sandbox.start(
            "_opencl_worker.probe", [], grant, folder, environment=environment, output=output
        )
        process.ended_within(_PROBE_TIMEOUT_S)
        if process.end():
            return []
        output.seek(0)
        # The library may have printed something before.
        answer = output.read(1 << 20).decode(errors="replace").strip().rpartition("\n")[2]
    return [DeviceFacts(**facts) for facts in json.loads(answer)]


def choose_device(platform: int, index: int, sandbox: Sandbox) -> DeviceFacts:
    """The device of this index of a platform.

    Raises:
        NoDevice: There is none; the message names those that there are.
    """
    devices = opencl_devices(sandbox)
    if not devices and sandbox.mechanisms and opencl_devices(Sandbox(frozenset())):
        raise NoDevice(
            "OpenCL does not work inside the sandbox here: for kernels you trust, --allow-unsafe"
        )
    if not devices:
        raise NoDevice(
            f"there is no OpenCL device here: {INSTALL} brings the library and one for the CPU, a "
            "GPU's driver one for the GPU; `clinfo -l` lists them"
        )
    for device in devices:
        if (device.platform, device.index) == (platform, index):
            return device
    known = ", ".join(
        f"platform={device.platform} index={device.index} {device.name}" for device in devices
    )
    raise NoDevice(f"there is no OpenCL device {index} of platform {platform}; known: {known}")


class _OpenClChild(Child):
    """A process that launches by OpenCL."""

    def refused(self, result: int) -> Failure:
        if result in _REFUSED_LAUNCHES:
            return no_launch(f"OpenCL refused it ({_REFUSED_LAUNCHES[result]})")
        return Failure(kind=FailureKind.CRASH, message=f"OpenCL error {result} on the device")

    def ended(self, status: int) -> Failure:
        if status == _opencl_worker.LOAD_FAILED:
            return Failure(
                kind=FailureKind.COMPILE_ERROR, message="OpenCL does not load its own binary"
            )
        if status == _opencl_worker.NO_DEVICE:
            raise NoDevice("the OpenCL device went away: see `clinfo -l`")
        return super().ended(status)


class OpenClCpuChild(_OpenClChild):
    """A process in which the kernel runs, in as many threads, on the memory shared with it."""

    def __init__(self, launch: Launch, threads: int, *process: Any, **options: Any) -> None:
        super().__init__(*process, **options)
        self._launch = launch
        self._threads = threads
        self._placed = False

    def run(self, case: str, calls: int, base: int, timeout_s: float) -> float | Failure:
        """Seconds of one request, a launch on each slot."""
        if not self._placed:
            self._place_threads()
        return super().run(case, calls, base, timeout_s)

    def words(self, case: str, calls: int, base: int, *, idle: bool) -> list[int]:
        """Which kernel to launch, offsets, dimensions, and the extents of the launch."""
        words = super().words(case, calls, base, idle=idle)
        dimensions = self.arena.cases[case].dimensions
        grid, block = self._launch.grid_extent(dimensions), self._launch.block_extent(dimensions)
        return [*words, *grid, *block]

    def _place_threads(self) -> None:
        """Let PoCL's threads run on the same cores in both processes of a comparison."""
        first = self.cores.index(self.core)
        chosen = [*self.cores[first:], *self.cores[:first]][: self._threads]
        for thread in Path(f"/proc/{self._worker_pid}/task").glob("*"):
            with suppress(OSError):
                os.sched_setaffinity(int(thread.name), chosen)
        self._placed = True


class OpenClDeviceChild(_OpenClChild, LaunchingChild):
    """A process that launches on a device; each request copies in, launches, or copies out."""

    phases = (_opencl_worker.STAGE, _opencl_worker.RUN, _opencl_worker.FETCH, _opencl_worker.IDLE)

    def __init__(self, launch: Launch, *process: Any, **options: Any) -> None:
        super().__init__(*process, **options)
        self.launches = dict.fromkeys(self.arena.cases, launch)
