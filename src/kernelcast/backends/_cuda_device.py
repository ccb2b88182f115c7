"""The process that launches compiled kernels on an NVIDIA GPU, and the GPU that is here.

Nothing of this has run on a GPU yet: see docs/how-to/run-on-a-gpu.md.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kernelcast.backends import _cuda_worker
from kernelcast.backends._arena import Arena
from kernelcast.backends._launch import (
    Launch,
    LaunchingChild,
    device_flush_bytes,
    driver_grant,
    no_launch,
)
from kernelcast.backends._sandbox import Grant, Sandbox
from kernelcast.errors import NoDevice
from kernelcast.types import Device, Failure, FailureKind

_PROBE_TIMEOUT_S = 30.0
_INVALID_VALUE, _OUT_OF_RESOURCES = 1, 701
_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


@dataclass(frozen=True)
class Program:
    """A compiled kernel: `widths` are the bytes of each parameter of its entry."""

    cubin: Path
    entry: str
    widths: tuple[int, ...]
    launch: Launch

    def ptx(self) -> str:
        """Return the text that the cubin was assembled from."""
        return self.cubin.with_name("kernel.ptx").read_text(encoding="utf-8")


def launching_sandbox(sandbox: Sandbox, *, allow_unsafe: bool) -> Sandbox:
    """The sandbox of a process that launches: the only device in it is the first NVIDIA GPU.

    The driver has not been tried in there, so `allow_unsafe` leaves the process unconfined.
    """
    if allow_unsafe:
        return Sandbox(frozenset())
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0] or "0"
    nodes = (f"/dev/nvidia{first}", *_NODES)
    return replace(sandbox, devices=tuple(node for node in nodes if Path(node).exists()))


def require_device(sandbox: Sandbox, target: str, device: Device) -> None:
    """Raise `NoDevice` unless this machine's first GPU is this device and runs this target."""
    answer = probe(sandbox)
    if answer is None and sandbox.mechanisms and probe(Sandbox(frozenset())) is not None:
        raise NoDevice(
            "the CUDA driver does not work inside the sandbox here: for kernels you trust, "
            "--allow-unsafe"
        )
    if answer is None:
        raise NoDevice(
            f"there is no CUDA device here to launch a kernel for {device.name} ({target}) on: "
            "run this on a machine whose `nvidia-smi` lists one (or give its farm the job); "
            "compile-only evidence (`inspect`) needs none"
        )
    capability, name = answer
    plain = target.rstrip("af")
    # A cubin runs on its own major version, from its minor version on.
    if capability[:-1] != plain[:-1] or int(capability[-1]) < int(plain[-1]):
        raise NoDevice(
            f"the GPU here is {name} ({capability}), which cannot run code for {target}: "
            f"name it with --device (or build the backend with target={capability!r})"
        )
    # The part of a name that tells devices apart: H100 of H100-SXM5, 3090 of RTX-3090.
    parts = device.name.split("-")
    model = next((part for part in parts if any(map(str.isdigit, part))), parts[0])
    if device.name != name and model not in name.replace("-", " ").split():
        raise NoDevice(
            f"the GPU here is {name}, and its times are not those of {device.name}: "
            "name the device that is here with --device (or give the backend a Device)"
        )


def probe(sandbox: Sandbox) -> tuple[str, str] | None:
    """Target and name of the first CUDA device, as a child finds it; None without one."""
    read, write = os.pipe()  # a process of profile `measure` cannot write to a file
    with os.fdopen(read, "rb") as answer, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            process = sandbox.start(
                "_cuda_worker.probe",
                [],
                _grant(folder),
                folder,
                environment=_environment(),
                output=write,
            )
        finally:
            os.close(write)
        process.ended_within(_PROBE_TIMEOUT_S)
        if process.end():
            return None
        target, _, name = answer.read1(4096).decode(errors="replace").strip().partition(" ")
    return target, name


def _grant(*readable: Path) -> Grant:
    paths = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    libraries = (Path(path) for path in paths if path and Path(path).is_dir())
    return driver_grant("measure", *libraries, *readable)


def _environment() -> dict[str, str]:
    # A function that is loaded lazily, on its first launch, would be timed loading.
    environment = {"CUDA_MODULE_LOADING": "EAGER"}
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        environment["CUDA_VISIBLE_DEVICES"] = visible
    return environment


class CudaChild(LaunchingChild):
    """A process that has loaded cubins; each request copies in, launches, or copies out."""

    phases = (_cuda_worker.STAGE, _cuda_worker.RUN, _cuda_worker.FETCH, _cuda_worker.IDLE)

    def __init__(
        self, sandbox: Sandbox, programs: Mapping[str, Program], arena: Arena, device: Device
    ) -> None:
        arrays, dimensions = len(arena.problem.arguments), len(arena.problem.dimensions)
        self._programs = programs
        self.launches = {case: program.launch for case, program in programs.items()}
        self._distinct = list(dict.fromkeys(programs.values()))
        functions = [
            {
                "cubin": str(program.cubin),
                "entry": program.entry,
                "widths": program.widths,
                "shared": max(  # the most that any case takes
                    program.launch.shared_bytes(case.dimensions) for case in arena.cases.values()
                ),
            }
            for program in self._distinct
        ]
        super().__init__(
            sandbox,
            "_cuda_worker.main",
            [json.dumps(functions), str(arrays), str(device_flush_bytes(device))],
            _grant(*{program.cubin.parent for program in self._distinct}),
            self._distinct[0].cubin.parent,
            words=5 + arrays + dimensions + 6,
            arena=arena,
            environment=_environment(),
        )

    def phase_words(self, phase: int, case: str, calls: int, base: int) -> list[int]:
        which = self._distinct.index(self._programs[case])
        return [which, *super().phase_words(phase, case, calls, base)]

    def refused(self, result: int) -> Failure:
        if result in (_INVALID_VALUE, _OUT_OF_RESOURCES):
            return no_launch(f"the driver refused it (CUDA error {result})")
        return Failure(kind=FailureKind.CRASH, message=f"CUDA error {result} on the device")

    def ended(self, status: int) -> Failure:
        if status == _cuda_worker.LOAD_FAILED:
            message = "the driver does not load its code"
            return Failure(kind=FailureKind.COMPILE_ERROR, message=message)
        if status == _cuda_worker.NO_DRIVER:
            raise NoDevice("the CUDA device went away: see `nvidia-smi` and the kernel's log")
        return super().ended(status)
