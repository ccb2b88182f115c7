"""What CUDA C++ and Triton share: the target, and the evidence of compiling and emulating.

A language's backend only compiles source to a `Build`: evidence and, for a kernel that can be
launched, a `Program` that the process of a `CudaChild` (`_cuda_device.py`) loads.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from kernelcast.backends._arena import Arena
from kernelcast.backends._child import Child
from kernelcast.backends._cuda_device import (
    CudaChild,
    Program,
    launching_sandbox,
    require_device,
)
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
from kernelcast.backends._toolchain import ToolRun, find_cuda_tool, run_tool
from kernelcast.backends._verify import KnownAnswer
from kernelcast.backends.base import MeasuringBackend
from kernelcast.devices import architecture, catalogue, find_device
from kernelcast.emulator.model import Architecture
from kernelcast.emulator.ptx import NotEmulated
from kernelcast.errors import NoDevice, SetupError
from kernelcast.types import (
    Case,
    Device,
    Emulated,
    Evidence,
    Failure,
    FailureKind,
    Kernel,
    Launched,
    Problem,
    content_hash,
)

_DEFAULT_TARGET = "sm_90"
_SAMPLE_BYTES = 1 << 16
_KEPT_EVIDENCE = 256


class GpuBackend(MeasuringBackend[Program]):
    """A backend without its compiler.

    Times and occupancy are those of `device`; code is compiled for `target`; see `choose_target`.
    The launching process is confined too, and sees no devices but those of NVIDIA's driver. With
    `allow_unsafe` it is not confined, in case the driver does not work there. `limits` are the
    other arguments of `MeasuringBackend`. `emulates` says whether evidence includes emulation.
    """

    def __init__(
        self,
        target: str | None,
        device: Device | str | None,
        toolchain: str,
        *limits: Any,
        allow_unsafe: bool,
        emulates: bool = True,
    ) -> None:
        self.target, chosen = choose_target(target, device)
        toolchain = f"{toolchain}, {self.target}"
        super().__init__(chosen, toolchain, *limits, allow_unsafe=allow_unsafe)
        self._disassembler = find_cuda_tool("nvdisasm")
        self._launching = launching_sandbox(self.sandbox, allow_unsafe=allow_unsafe)
        self.level = self.level if self._launching.mechanisms else "S0"
        self._device_is_here = False
        self._emulates = emulates
        self._inspected: OrderedDict[str, Evidence] = OrderedDict()
        self._seed_faults: dict[str, str] = {}

    def require_device(self) -> None:
        if not self._device_is_here:
            require_device(self._launching, self.target, self.device)
            self._device_is_here = True

    def start(self, arena: Arena, programs: Mapping[str, Program]) -> Child:
        return CudaChild(self._launching, programs, arena, self.device)

    def programs(
        self, problem: Problem, cases: Sequence[Case], source: str
    ) -> dict[str, Program] | Failure:
        """The programs by case, if each can be launched on its case, which may be a hidden one."""
        programs = super().programs(problem, cases, source)
        if isinstance(programs, Failure):
            return programs
        faults = (programs[case.name].launch.fault([case]) for case in cases)
        return next(filter(None, faults), None) or programs

    def _evidence_basis(self) -> str:
        return f"{super()._evidence_basis()}\0{self._disassembler}\0{self._emulates}"

    def _inspect(self, problem: Problem, kernel: Kernel) -> Evidence:
        """Compile, check the small cases and estimate the time of the timed ones, without a GPU.

        A kernel that emulation finds wrong is evidence with a failure. If emulation finds the
        problem's own seed wrong, it judges no kernel of that problem.
        """
        evidence = super()._inspect(problem, kernel)
        if evidence.failure is not None or not problem.arguments:
            return evidence
        evidence = evidence.model_copy(update={"launched": self._launched(problem, kernel)})
        if not self._emulates:
            return evidence
        key = content_hash(f"{problem.id}\0{kernel.source}")
        with self._lock:
            if key in self._inspected:
                self._inspected.move_to_end(key)
                return self._inspected[key].model_copy(update={"kernel_id": kernel.id})
        evidence = self._with_emulation(problem, kernel, evidence)
        with self._lock:
            self._inspected[key] = evidence
            if len(self._inspected) > _KEPT_EVIDENCE:
                self._inspected.popitem(last=False)
        return evidence

    def _launched(self, problem: Problem, kernel: Kernel) -> Launched | None:
        """The geometry in the first timed case; None if the code does not state it."""
        case = problem.timed_cases[0]
        program = self._build(problem, case, kernel.source).program
        if program is None:
            return None
        return Launched(
            kernel=problem.entry,
            grid=program.launch.grid_extent(case.dimensions),
            block=program.launch.block_extent(case.dimensions),
            shared_bytes=program.launch.shared_bytes(case.dimensions),
        )

    def _with_emulation(self, problem: Problem, kernel: Kernel, evidence: Evidence) -> Evidence:
        failure, unchecked, cpu_s = self._checked(problem, kernel)
        if failure is not None:
            seed_fault = self._seed_fault(problem)
            failure = None if seed_fault else failure
            unchecked = seed_fault
        estimates: list[Emulated] = []
        not_emulated = ""
        try:
            estimates = self.emulate(problem, kernel)
        except NotEmulated as error:
            not_emulated = str(error)
        return evidence.model_copy(
            update={
                "failure": failure,
                "emulated": tuple(estimates),
                "not_emulated": not_emulated,
                "unchecked": unchecked,
                "emulation_cpu_s": cpu_s + sum(estimate.cpu_s for estimate in estimates),
            }
        )

    def _checked(self, problem: Problem, kernel: Kernel) -> tuple[Failure | None, str, float]:
        """Return what is wrong on the small cases, why they were not run, and the CPU seconds."""
        try:
            failure, cpu_s = self._computed(problem, kernel, seed=0)
        except (NotEmulated, SetupError) as error:
            return None, str(error), 0.0
        return failure, "", cpu_s

    def _seed_fault(self, problem: Problem) -> str:
        """Return what emulation finds wrong with the problem's seed, which is known to work."""
        if problem.id not in self._seed_faults:
            seed = Kernel(id="", language=problem.language, source=problem.seed_source)
            failure, _, _ = self._checked(problem, seed)
            if failure is not None and failure.kind is FailureKind.COMPILE_ERROR:
                failure = None  # a seed in another language
            fault = f"emulation finds the seed wrong too: {failure.headline}" if failure else ""
            self._seed_faults[problem.id] = fault
        return self._seed_faults[problem.id]

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
        failure, _ = self._computed(problem, kernel, seed)
        return failure

    def _computed(
        self, problem: Problem, kernel: Kernel, seed: int
    ) -> tuple[Failure | None, float]:
        """Return what is wrong on the small cases, or None, and the CPU seconds."""
        rng = np.random.default_rng([seed % 2**63, secrets.randbits(64)])
        expected = self._oracles.of(problem)
        total_s = 0.0
        try:
            built = self.programs(problem, problem.cases, kernel.source)
        except NoDevice:
            raise NotEmulated("code without a launch") from None
        if isinstance(built, Failure):
            return built, total_s
        for case in small_cases(problem, built[problem.cases[0].name].launch):
            program = built[case.name]
            failure, cpu_s = emulate(
                self.sandbox,
                self.directory,
                problem,
                program.ptx(),
                program.entry,
                program.launch,
                KnownAnswer.draw(problem, case, expected, rng),
                self.compile_timeout_s,
            )
            total_s += cpu_s
            if failure is not None:
                return failure, total_s
        return None, total_s

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
            self.sandbox,
            self.directory,
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
            self.compile_timeout_s,
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
        return decode(self.sandbox, self.directory, ptx, self.compile_timeout_s)

    def _run(self, command: Sequence[str | Path], folder: Path) -> ToolRun:
        """Run a compiler or disassembler, confined."""
        return run_tool(self.sandbox, command, folder, self.compile_timeout_s)

    def _mix(self, folder: Path, ptx: str, entry: str | None = None) -> tuple[int, dict[str, int]]:
        """Size and instruction mix of kernel.cubin; without a disassembler, the mix of its PTX."""
        if self._disassembler is not None:
            command = (self._disassembler.resolve(), "-c", "-ndf", "kernel.cubin")
            listing = self._run(command, folder)
            if not listing.failure:
                return sass_mix(listing.output, entry)
        return 0, ptx_mix(ptx)

    def evidence(
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
        return super().evidence(problem, run, failure=failure, code=code, **facts)


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
