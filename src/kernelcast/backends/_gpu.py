"""What CUDA C++ and Triton share: the target, the evidence, and the launch by NVIDIA's driver.

A language's backend only compiles source to a `Build`: evidence and, for a kernel that can be
launched, a `Program` that the process of a `CudaChild` (`_cuda_worker`) loads. The launch has not
run on a GPU yet: see docs/how-to/run-on-a-gpu.md.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from kernelcast.backends import _cuda_worker
from kernelcast.backends._arena import Arena
from kernelcast.backends._backend import MeasuringBackend
from kernelcast.backends._child import Child
from kernelcast.backends._emulation import (
    Array,
    CountedLaunch,
    count,
    decode,
    emulate,
    small_cases,
)
from kernelcast.backends._inputs import sample_inputs
from kernelcast.backends._inspect import Resources, ptx_mix, residency, sass_mix
from kernelcast.backends._launch import (
    Launch,
    LaunchingChild,
    device_flush_bytes,
    driver_grant,
    no_launch,
)
from kernelcast.backends._sandbox import Grant, Sandbox
from kernelcast.backends._toolchain import ToolRun, find_cuda_tool, run_tool
from kernelcast.backends._verify import KnownAnswer, oracle
from kernelcast.devices import architecture, catalogue, find_device
from kernelcast.emulator.model import Architecture
from kernelcast.emulator.ptx import NotEmulated
from kernelcast.errors import NoDevice, SetupError
from kernelcast.types import Case, Device, Emulated, Evidence, Failure, FailureKind, Kernel, Problem

_DEFAULT_TARGET = "sm_90"
_PROBE_TIMEOUT_S = 30.0
_SAMPLE_BYTES = 1 << 16
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


class GpuBackend(MeasuringBackend[Program]):
    """A backend without its compiler.

    Times and occupancy are those of `device`; code is compiled for `target`; see `choose_target`.
    The launching process is confined too, and sees no devices but those of NVIDIA's driver. With
    `allow_unsafe` it is not confined, in case the driver does not work there. `limits` are the
    other arguments of `MeasuringBackend`.
    """

    def __init__(
        self,
        target: str | None,
        device: Device | str | None,
        toolchain: str,
        *limits: Any,
        allow_unsafe: bool,
    ) -> None:
        self.target, chosen = choose_target(target, device)
        toolchain = f"{toolchain}, {self.target}"
        super().__init__(chosen, toolchain, *limits, allow_unsafe=allow_unsafe)
        self._disassembler = find_cuda_tool("nvdisasm")
        self._launching = launching_sandbox(self._sandbox, allow_unsafe=allow_unsafe)
        self.level = self.level if self._launching.mechanisms else "S0"
        self._device_is_here = False

    def _require_device(self) -> None:
        if not self._device_is_here:
            require_device(self._launching, self.target, self.device)
            self._device_is_here = True

    def _start(self, arena: Arena, programs: Mapping[str, Program]) -> Child:
        return CudaChild(self._launching, programs, arena, self.device)

    def verify(self, problem: Problem, kernel: Kernel, seed: int) -> Failure | None:
        """Run the problem's small cases by emulating the compiled code, without a GPU.

        This finds wrong results, accesses outside of arrays, races between warps, and barriers
        that not all threads reach.

        Returns:
            The failure, or None.

        Raises:
            NotEmulated: The code has something that is not emulated.
            SetupError: The problem has no case that is small enough.
        """
        rng = np.random.default_rng([seed % 2**63, secrets.randbits(64)])
        expected = oracle(problem)
        try:
            built = self._built(problem, problem.cases, kernel.source)
        except NoDevice:
            raise NotEmulated("code without a launch") from None
        if isinstance(built, Failure):
            return built
        for case in small_cases(problem, built[problem.cases[0].name].launch):
            program = built[case.name]
            failure = emulate(
                self._sandbox,
                self._directory,
                problem,
                program.ptx(),
                program.entry,
                program.launch,
                KnownAnswer.draw(problem, case, expected, rng),
                self._compile_timeout_s,
            )
            if failure is not None:
                return failure
        return None

    def emulate(self, problem: Problem, kernel: Kernel) -> list[Emulated]:
        """Estimate the time of a kernel on each timed case by counting what its blocks do.

        Raises:
            NotEmulated: The code has something that is not emulated, or it does not compile, or
                the device's architecture is not known.
        """
        constants = architecture(self.target)
        if constants is None:
            raise NotEmulated(f"{self.device.name}: the pipes of {self.target} are not known")
        rng = np.random.default_rng(0)
        estimates = []
        for case in problem.timed_cases:
            arrays = [Array(*one) for one in sample_inputs(problem, case, _SAMPLE_BYTES, rng)]
            numbers = [case.dimensions[name] for name in problem.dimensions]
            counted = self.count(problem, case, kernel.source, [*arrays, *numbers])
            estimates.append(counted.summary(self.device, Architecture(**constants), case.name))
        return estimates

    def count(
        self,
        problem: Problem,
        case: Case | None,
        source: str,
        arguments: Sequence[Array | int],
        variables: Mapping[str, bytes] = MappingProxyType({}),
    ) -> CountedLaunch:
        """Count what the blocks of a launch do.

        Args:
            problem: The problem; if it states no arguments, a source is launched as it says.
            case: The case whose dimensions the launch depends on.
            source: The source.
            arguments: What the entry is handed: arrays, and the bits of numbers.
            variables: What the module's own variables hold, by name.

        Raises:
            NotEmulated: The code has something that is not emulated, or it does not compile.
        """
        build = self._build(problem, case, source)
        if build.evidence.failure is not None:
            raise NotEmulated(build.evidence.failure.headline)
        program = build.program
        if program is None:
            raise NotEmulated("code without a launch")
        dimensions = case.dimensions if case else {}
        return count(
            self._sandbox,
            self._directory,
            program.ptx(),
            program.entry,
            build.evidence,
            (
                program.launch.grid_extent(dimensions),
                program.launch.block_extent(dimensions),
                program.launch.shared_bytes(dimensions),
            ),
            arguments,
            variables,
            self._compile_timeout_s,
        )

    def ptx(self, problem: Problem, source: str) -> str | Failure:
        """Compile a source that need not be launched, and return its PTX, or why it has none."""
        build = self._build(problem, None, source)
        if build.evidence.failure is not None:
            return build.evidence.failure
        if build.ptx is None:
            return Failure(kind=FailureKind.COMPILE_ERROR, message="no PTX was made of it")
        return build.ptx.read_text(encoding="utf-8")

    def decode(self, ptx: str) -> int:
        """Make every instruction of the entries ready to run, and of what they call.

        Returns:
            The number of entries.

        Raises:
            UnknownInstructions: Some instructions are not emulated.
            NotEmulated: The text has something else that is not emulated.
        """
        return decode(self._sandbox, self._directory, ptx, self._compile_timeout_s)

    def _run(self, command: Sequence[str | Path], folder: Path) -> ToolRun:
        """Run a compiler or disassembler, confined."""
        return run_tool(self._sandbox, command, folder, self._compile_timeout_s)

    def _mix(self, folder: Path, ptx: str, entry: str | None = None) -> tuple[int, dict[str, int]]:
        """Size and instruction mix of kernel.cubin; without a disassembler, the mix of its PTX."""
        if self._disassembler is not None:
            command = (self._disassembler.resolve(), "-c", "-ndf", "kernel.cubin")
            listing = self._run(command, folder)
            if not listing.failure:
                return sass_mix(listing.output, entry)
        return 0, ptx_mix(ptx)

    def _evidence(
        self,
        problem: Problem,
        run: ToolRun,
        *,
        failure: Failure | None = None,
        code: tuple[int, Mapping[str, int]] = (0, {}),
        resources: Resources | None = None,
        **facts: Any,
    ) -> Evidence:
        """Evidence without a kernel id; occupancy only for a stated size of block."""
        if resources is not None:
            facts |= asdict(resources)
            if threads := facts.get("block_threads"):
                facts["occupancy"] = residency(
                    self.device, resources.registers, resources.shared_bytes, threads
                ).occupancy
        facts["target"] = self.target
        return super()._evidence(problem, run, failure=failure, code=code, **facts)


def choose_target(target: str | None, device: Device | str | None) -> tuple[str, Device]:
    """The target to compile for, and the device: each follows from the other.

    Of several devices with one target, the catalogue's first is chosen; by default, an H100.
    """
    if device is not None:
        chosen = find_device(device) if isinstance(device, str) else device
        return target or chosen.target, chosen
    target = target or _DEFAULT_TARGET
    plain = target.rstrip("af") if target.startswith("sm_") else target
    for candidate in catalogue().values():
        if candidate.target == plain:
            return target, candidate
    known = sorted({candidate.target for candidate in catalogue().values()})
    raise SetupError(
        f"no known device is built for {target!r}; name one with `device`, or a target of: "
        f"{', '.join(known)}"
    )


# ------------------------------------------------------------------------------------ a device


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

    on_cpu = False

    def __init__(
        self, sandbox: Sandbox, programs: Mapping[str, Program], arena: Arena, device: Device
    ) -> None:
        arrays, dimensions = len(arena.problem.arguments), len(arena.problem.dimensions)
        self._programs = programs
        self._launches = {case: program.launch for case, program in programs.items()}
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
            message = "the driver does not load its code"
            return Failure(kind=FailureKind.COMPILE_ERROR, message=message)
        if status == _cuda_worker.NO_DRIVER:
            raise NoDevice("the CUDA device went away: see `nvidia-smi` and the kernel's log")
        return super()._ended(status)
