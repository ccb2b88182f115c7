"""Measuring compiled GPU code through the CUDA driver, whatever language it was written in.

A language's backend turns source into a `Program`: a cubin and how it is launched. Here is the
process that launches it (`_cuda_worker`), confined, for the one way of measuring (`_backend`), and
what of it holds for any driver (`opencl` has another). The parent's clock runs during the `run`
request alone: copying to and from the device lies before and after it. CUDA's launch has not run
on a GPU yet: see docs/how-to/run-on-a-gpu.md.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernelcast.backends import _cuda_worker
from kernelcast.backends._arena import Arena
from kernelcast.backends._child import Child
from kernelcast.backends._sandbox import Grant, Sandbox
from kernelcast.backends._seccomp import Profile
from kernelcast.errors import NoDevice, ProblemError
from kernelcast.expression import evaluate
from kernelcast.types import Device, Failure, FailureKind, Problem

_PROBE_TIMEOUT_S = 30.0
_SMALLEST_FLUSH_BYTES = 64 << 20
_INVALID_VALUE, _OUT_OF_RESOURCES = 1, 701
_MOST_BLOCK_THREADS = 1024
_MOST_GRID = (2**31 - 1, 65_535, 65_535)
_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
# A GPU's driver maps the device's memory and more into its address space.
_ADDRESSABLE_BYTES = 1 << 46
_DESCRIPTORS = 512


# -------------------------------------------------------------------------------- the geometry


@dataclass(frozen=True)
class Launch:
    """How many blocks of how many threads: expressions over dimensions and constants.

    A grid has up to three extents; `/` divides and rounds down, as in C.
    """

    grid: tuple[str, ...]
    block: tuple[str, ...]
    shared: str = "0"
    constants: tuple[tuple[str, int | float | str], ...] = ()

    def block_extent(self, dimensions: Mapping[str, int]) -> tuple[int, int, int]:
        """Threads of a block in x, y and z."""
        return self._extent(self.block, dimensions)

    def grid_extent(self, dimensions: Mapping[str, int]) -> tuple[int, int, int]:
        """Blocks in x, y and z."""
        return self._extent(self.grid, dimensions)

    def shared_bytes(self, dimensions: Mapping[str, int]) -> int:
        """Dynamic shared memory of a block."""
        return self._value(self.shared, dimensions)

    def fault(self, problem: Problem) -> Failure | None:
        """Why this cannot be launched on the problem's cases; None where it can."""
        try:
            for case in problem.cases:
                block = self.block_extent(case.dimensions)
                grid = self.grid_extent(case.dimensions)
                if math.prod(block) > _MOST_BLOCK_THREADS:
                    return no_launch(f"{math.prod(block)} threads a block; 1024 is the most")
                if any(extent > most for extent, most in zip(grid, _MOST_GRID, strict=True)):
                    return no_launch(f"case {case.name}: the grid {grid} is too large")
                if min(*block, *grid) < 1 or self.shared_bytes(case.dimensions) < 0:
                    return no_launch(f"case {case.name}: grid {grid}, block {block}")
        except (ProblemError, ArithmeticError, TypeError, ValueError) as error:
            return no_launch(str(error))
        return None

    def _extent(self, texts: Sequence[str], dimensions: Mapping[str, int]) -> tuple[int, int, int]:
        x, y, z = ([self._value(each, dimensions) for each in texts] + [1, 1, 1])[:3]
        return x, y, z

    def _value(self, text: str, dimensions: Mapping[str, int]) -> int:
        whole = text.replace("//", "/").replace("/", "//")
        return int(evaluate(whole, {**dict(self.constants), **dimensions}))


def no_launch(why: str) -> Failure:
    """The failure of a kernel that cannot be launched."""
    return Failure(kind=FailureKind.COMPILE_ERROR, message=f"it cannot be launched: {why}")


@dataclass(frozen=True)
class Program:
    """A compiled kernel: `widths` are the bytes of each parameter of its entry."""

    cubin: Path
    entry: str
    widths: tuple[int, ...]
    launch: Launch

    def as_stated(self, arena: Arena) -> dict[str, Any]:
        """What the worker is told of it; shared memory is the most that any case takes."""
        return {
            "cubin": str(self.cubin),
            "entry": self.entry,
            "widths": self.widths,
            "shared": max(
                self.launch.shared_bytes(case.dimensions) for case in arena.cases.values()
            ),
        }


# ------------------------------------------------------------------------------------ a device


def launching_sandbox(sandbox: Sandbox, *, allow_unsafe: bool) -> Sandbox:
    """What confines a process that launches: of all devices, it sees the first NVIDIA GPU.

    The driver has not been tried in there, hence the way around it.
    """
    if allow_unsafe:
        return Sandbox(frozenset())
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0] or "0"
    chosen = (f"/dev/nvidia{first}", *_NODES)
    return replace(sandbox, devices=tuple(each for each in chosen if Path(each).exists()))


def driver_grant(profile: Profile, *readable: Path, writable: tuple[Path, ...] = ()) -> Grant:
    """What a process may use that loads the driver of a GPU."""
    return Grant(profile, readable, writable, _ADDRESSABLE_BYTES, most_descriptors=_DESCRIPTORS)


def _grant(*readable: Path) -> Grant:
    paths = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    libraries = (Path(each) for each in paths if each and Path(each).is_dir())
    return driver_grant("measure", *libraries, *readable)


def require_device(sandbox: Sandbox, target: str, device: Device) -> None:
    """Raise `NoDevice` unless this machine's first GPU is this device and runs this target."""
    found = probe(sandbox)
    if found is None and sandbox.mechanisms and probe(Sandbox(frozenset())) is not None:
        raise NoDevice(
            "the CUDA driver does not work inside the sandbox here: for kernels you trust, "
            "--allow-unsafe"
        )
    if found is None:
        raise NoDevice(
            f"there is no CUDA device here to launch a kernel for {device.name} ({target}) on: "
            "run this on a machine whose `nvidia-smi` lists one (or give its farm the job); "
            "compile-only evidence (`inspect`) needs none"
        )
    capability, name = found
    wanted = target.rstrip("af")
    # A cubin runs on its own major version, from its minor version on.
    if capability[:-1] != wanted[:-1] or int(capability[-1]) < int(wanted[-1]):
        raise NoDevice(
            f"the GPU here is {name} ({capability}), which cannot run code for {target}: "
            f"name it with --device (or build the backend with target={capability!r})"
        )
    if device.name != name and _model(device.name) not in name.replace("-", " ").split():
        raise NoDevice(
            f"the GPU here is {name}, and its times are not those of {device.name}: "
            "name the device that is here with --device (or give the backend a Device)"
        )


def probe(sandbox: Sandbox) -> tuple[str, str] | None:
    """Target and name of the first CUDA device, asked for in a child; None without one."""
    read, write = os.pipe()  # a confined process may write to no file
    with os.fdopen(read, "rb") as answer, tempfile.TemporaryDirectory() as folder:
        try:
            process = sandbox.start(
                "_cuda_worker.probe",
                [],
                _grant(Path(folder)),
                Path(folder),
                output=write,
                environment=_environment(),
            )
        finally:
            os.close(write)
        process.ended_within(_PROBE_TIMEOUT_S)
        if process.end():
            return None
        target, _, name = answer.read1(4096).decode(errors="replace").strip().partition(" ")
    return target, name


def _environment() -> dict[str, str]:
    # A function that is loaded on its first launch would be timed loading.
    environment = {"CUDA_MODULE_LOADING": "EAGER"}
    if chosen := os.environ.get("CUDA_VISIBLE_DEVICES"):
        environment["CUDA_VISIBLE_DEVICES"] = chosen
    return environment


def _model(name: str) -> str:
    """The part of a device's name that tells it apart: H100 of H100-SXM5, 3090 of RTX-3090."""
    parts = name.split("-")
    return next((part for part in parts if any(map(str.isdigit, part))), parts[0])


def device_flush_bytes(device: Device) -> int:
    """How much to write on a device so that no input is left in its cache."""
    return max(2 * device.cache_bytes, _SMALLEST_FLUSH_BYTES)


class LaunchingChild(Child):
    """A process that launches on a device, where one run is several requests, of one phase each."""

    _launches: Mapping[str, Launch]  # by case

    def _ask(
        self, phases: Sequence[int], timed: int, case: str, calls: int, base: int, timeout_s: float
    ) -> float | Failure:
        """Seconds of one of these phases."""
        seconds = {}
        for phase in phases:
            taken = self.call(self._words(phase, case, calls, base), timeout_s)
            if isinstance(taken, Failure):
                return taken
            seconds[phase] = taken
        return seconds[timed]

    def _words(self, phase: int, case: str, calls: int, base: int) -> list[int]:
        launch, layout = self._launches[case], self.arena.layouts[case]
        dimensions = self.arena.cases[case].dimensions
        return [
            *(phase, calls, layout.stride, base, *layout.offsets, *self.arena.extents(case)),
            *launch.grid_extent(dimensions),
            *launch.block_extent(dimensions),
        ]


class CudaChild(LaunchingChild):
    """A process that has loaded cubins; each request copies in, launches, or copies out."""

    on_cpu = False

    def __init__(
        self, sandbox: Sandbox, programs: Mapping[str, Program], arena: Arena, device: Device
    ) -> None:
        problem = arena.problem
        arrays, dimensions = len(problem.arguments), len(problem.dimensions)
        self._programs = programs
        self._launches = {case: each.launch for case, each in programs.items()}
        self._distinct = list(dict.fromkeys(programs.values()))
        folders = {each.cubin.parent for each in self._distinct}
        functions = json.dumps([each.as_stated(arena) for each in self._distinct])
        super().__init__(
            sandbox,
            "_cuda_worker.main",
            [functions, str(arrays), str(dimensions), str(device_flush_bytes(device))],
            _grant(*folders),
            self._distinct[0].cubin.parent,
            words=5 + arrays + dimensions + 6,
            arena=arena,
            **_environment(),
        )

    def run(self, case: str, calls: int, base: int, timeout_s: float) -> float | Failure:
        """Seconds of the launches alone, a launch on each slot."""
        phases = (_cuda_worker.STAGE, _cuda_worker.RUN, _cuda_worker.FETCH)
        return self._ask(phases, _cuda_worker.RUN, case, calls, base, timeout_s)

    def idle(self, case: str, calls: int, timeout_s: float) -> float | Failure:
        """Seconds of a request that launches nothing."""
        return self.call(self._words(_cuda_worker.IDLE, case, calls, 0), timeout_s)

    def _words(self, phase: int, case: str, calls: int, base: int) -> list[int]:
        which = self._distinct.index(self._programs[case])
        return [which, *super()._words(phase, case, calls, base)]

    def _refused(self, result: int) -> Failure:
        if result in (_INVALID_VALUE, _OUT_OF_RESOURCES):
            return no_launch(f"the driver refused it (CUDA error {result})")
        return Failure(kind=FailureKind.CRASH, message=f"CUDA error {result} on the device")

    def _ended(self, status: int) -> Failure:
        if status == _cuda_worker.LOAD_FAILED:
            return Failure(
                kind=FailureKind.COMPILE_ERROR, message="the driver does not load its code"
            )
        if status == _cuda_worker.NO_DRIVER:
            raise NoDevice("the CUDA device went away: see `nvidia-smi` and the kernel's log")
        return super()._ended(status)
