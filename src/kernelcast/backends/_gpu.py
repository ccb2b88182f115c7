"""What the backends of GPU languages share: keeping builds, evidence, the order of a measurement.

A language's backend only compiles: source to a `Build`, which is evidence and, where the kernel
can be launched, a `Program` for the driver (`_driver`).
"""

from __future__ import annotations

import re
import secrets
import shutil
import tempfile
import threading
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernelcast.backends._driver import Program, Programs, compare, require_device
from kernelcast.backends._inspect import Resources, occupancy
from kernelcast.backends._sandbox import Level, Sandbox, admit
from kernelcast.backends._timing import NOISE_FLOOR, SCREENING, noise_floor
from kernelcast.backends._toolchain import ToolRun, run_tool
from kernelcast.canonical import kernel_id
from kernelcast.devices import catalogue, find_device, roofline_s
from kernelcast.errors import ProblemError, SetupError
from kernelcast.types import (
    Case,
    Device,
    Evidence,
    Failure,
    FailureKind,
    Kernel,
    Language,
    Measurement,
    Problem,
    Resource,
    Spend,
    Timing,
    content_hash,
)

_KEPT_BUILDS = 256
_DEFAULT_TARGET = "sm_90"


@dataclass(frozen=True)
class Build:
    """What compiling gave: evidence that names no kernel yet, and a program if it can run."""

    evidence: Evidence
    program: Program | None = None


class GpuBackend(ABC):
    """A backend up to the compiler: builds are kept, the launch is the driver's.

    `device` is what times and occupancy are true on, and `target` what is compiled for; see
    `choose_target`. Compilers are confined, at least to the level `require` if it is given;
    the launching process is not yet, so with `require` nothing is launched. Safe to use from
    several threads.
    """

    name: str
    languages: tuple[Language, ...]

    def __init__(
        self,
        target: str,
        device: Device,
        toolchain: str,
        compile_timeout_s: float,
        device_cap_s: float,
        require: Level | None,
        *,
        allow_unsafe: bool,
    ) -> None:
        self._sandbox = Sandbox.detect()
        self.level: Level = admit(self._sandbox, require, allow_unsafe=allow_unsafe)
        self._launches = require in (None, "S0")
        self.target = target
        self.device = device
        self._device_is_here = False
        self.toolchain = f"{toolchain}, {target}"
        self._compile_timeout_s = compile_timeout_s
        self._device_cap_s = device_cap_s
        self._directory = Path(tempfile.mkdtemp(prefix=f"kernelcast-{self.name}-"))
        self._lock = threading.Lock()
        self._builds: OrderedDict[str, tuple[Build, Path]] = OrderedDict()
        self._noise_log2: dict[str, float] = {}
        self._finalizer = weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)

    @abstractmethod
    def _compile(self, problem: Problem, case: Case | None, source: str, folder: Path) -> Build:
        """Compile for a case in this folder, which is kept as long as the build."""

    def _specialised(self, _problem: Problem, _case: Case | None) -> str:
        """What a build for this case depends on beside the source: nothing."""
        return ""

    def close(self) -> None:
        """Remove what was built; also done at exit."""
        self._finalizer()

    def quote(self, _problem: Problem) -> Spend:
        """One measurement, and the device for at most `device_cap_s`."""
        return {Resource.MEASUREMENTS: 1.0, Resource.DEVICE_S: self._device_cap_s}

    def inspect(self, problem: Problem, kernel: Kernel) -> Evidence:
        """Compile only: registers, spills, shared memory, occupancy, instruction mix, roofline."""
        evidence = self._build(problem, _main_case(problem), kernel.source).evidence
        return evidence.model_copy(update={"kernel_id": kernel.id})

    def measure(self, problem: Problem, kernel: Kernel, seed: int) -> Measurement:
        """Verify and time against the seed kernel; `NoDevice` where nothing can be launched."""
        builds = self._builds_by_case(problem, kernel.source)
        for build in builds.values():
            if build.evidence.failure is not None:
                return self._measurement(problem, kernel, build.evidence.failure, 0.0)
        if not self._device_is_here:
            require_device(self.target, self.device)
            self._device_is_here = True
        if not self._launches:
            raise SetupError("GPU kernels are launched at level S0 so far: leave out `require`")
        candidate = _programs(builds)
        reference = _programs(self._builds_by_case(problem, problem.seed_source))
        if reference is None:
            raise ProblemError(f"the seed kernel of {problem.name} cannot be launched")
        if candidate is None:
            failure = Failure(kind=FailureKind.COMPILE_ERROR, message="it cannot be launched")
            return self._measurement(problem, kernel, failure, 0.0)
        # The run's seed can be guessed, the rest cannot: no kernel knows its inputs in advance.
        rng = np.random.default_rng([seed % 2**63, secrets.randbits(64)])
        is_reference = kernel.id == kernel_id(problem.seed_source, problem.language)
        outcome, device_s = compare(
            problem,
            self.device,
            candidate,
            reference,
            rng,
            NOISE_FLOOR if is_reference else SCREENING,
            self._device_cap_s,
        )
        if is_reference and isinstance(outcome, Timing):
            with self._lock:
                self._noise_log2[problem.id] = noise_floor(outcome)
        return self._measurement(problem, kernel, outcome, device_s)

    def _measurement(
        self, problem: Problem, kernel: Kernel, outcome: Timing | Failure, device_s: float
    ) -> Measurement:
        with self._lock:
            noise_log2 = self._noise_log2.get(problem.id, 0.0)
        return Measurement(
            kernel_id=kernel.id,
            problem_id=problem.id,
            device_id=self.device.id,
            toolchain=self.toolchain,
            timing=outcome if isinstance(outcome, Timing) else None,
            failure=outcome if isinstance(outcome, Failure) else None,
            noise_log2=noise_log2,
            device_s=device_s,
        )

    def _builds_by_case(self, problem: Problem, source: str) -> dict[str, Build]:
        return {case.name: self._build(problem, case, source) for case in problem.cases}

    def _build(self, problem: Problem, case: Case | None, source: str) -> Build:
        """Compile, or take what was compiled before: inspecting and measuring compile once."""
        if problem.language not in self.languages:
            raise SetupError(
                f"{problem.name} is a {problem.language} problem; the {self.name} backend takes "
                f"{' and '.join(self.languages)}"
            )
        key = content_hash(f"{problem.id}\0{self._specialised(problem, case)}\0{source}")
        with self._lock:
            if key in self._builds:
                self._builds.move_to_end(key)
                return self._builds[key][0]
        folder = Path(tempfile.mkdtemp(dir=self._directory))
        build = self._compile(problem, case, source, folder)
        with self._lock:
            self._builds[key] = build, folder
            if len(self._builds) > _KEPT_BUILDS:
                _, (_, oldest) = self._builds.popitem(last=False)
                shutil.rmtree(oldest, ignore_errors=True)
        return build

    def _run(
        self, command: Sequence[str | Path], folder: Path, timeout_s: float | None = None
    ) -> ToolRun:
        """Run a compiler or disassembler, confined."""
        return run_tool(self._sandbox, command, folder, timeout_s or self._compile_timeout_s)

    def _evidence(
        self,
        problem: Problem,
        run: ToolRun,
        *,
        failure: Failure | None = None,
        resources: Resources | None = None,
        code: tuple[int, Mapping[str, int]] = (0, {}),
        block_threads: int | None = None,
    ) -> Evidence:
        """Evidence that names no kernel yet; occupancy only for a stated size of block."""
        evidence = Evidence(
            kernel_id="",
            toolchain=self.toolchain,
            target=self.target,
            failure=failure,
            compile_s=run.seconds,
            code_bytes=code[0],
            instructions=code[1],
            roofline_s=None if failure else roofline_s(problem, self.device),
            block_threads=block_threads,
        )
        if resources is None:
            return evidence
        taken: dict[str, int | float | None] = {
            "registers": resources.registers,
            "spill_bytes": resources.spill_bytes,
            "shared_bytes": resources.shared_bytes,
            "stack_bytes": resources.stack_bytes,
        }
        if block_threads:
            taken_of_core = (resources.registers, resources.shared_bytes, block_threads)
            taken["occupancy"] = occupancy(self.device, *taken_of_core)
        return evidence.model_copy(update=taken)


def _main_case(problem: Problem) -> Case | None:
    """The case that evidence is about: the first timed one."""
    return next(iter((*problem.timed_cases, *problem.cases)), None)


def _programs(builds: Mapping[str, Build]) -> Programs | None:
    """The programs by case, if every case has one."""
    found = {case: build.program for case, build in builds.items() if build.program}
    return found if len(found) == len(builds) else None


def choose_target(target: str | None, device: Device | str | None) -> tuple[str, Device]:
    """What to compile for, and what for: the device's own target, or a device of this target.

    Of the catalogue's devices of one target, the first is taken; with neither, an H100.
    """
    if device is not None:
        chosen = find_device(device) if isinstance(device, str) else device
        return target or chosen.target, chosen
    target = target or _DEFAULT_TARGET
    wanted = re.sub(r"^(sm_\d+)[af]$", r"\1", target)
    found = next((each for each in catalogue().values() if each.target == wanted), None)
    if found is None:
        known = sorted({each.target for each in catalogue().values()})
        raise SetupError(
            f"no known device is built for {target!r}; name one with `device`, or a target of: "
            f"{', '.join(known)}"
        )
    return target, found
