"""The part that the backends of all languages share: builds, and the order of a measurement.

A language compiles source to a `Build` and starts a `Child` that has loaded it. Everything else is
the same for all: the sandbox, fresh inputs, hidden cases, verification, timing and the noise floor.
A measurement holds the device from the moment its inputs are drawn. Compiling, drawing inputs and
asking the oracle come before and are not device time.
"""

from __future__ import annotations

import logging
import math
import secrets
import shutil
import tempfile
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from kernelcast import cache
from kernelcast.backends._arena import Arena
from kernelcast.backends._child import Child
from kernelcast.backends._emulation import NOT_FINISHED
from kernelcast.backends._inputs import (
    HIDDEN,
    Array,
    FreshInputs,
    InputSource,
    hidden_cases,
    varied_cases,
)
from kernelcast.backends._match import MachineBusy, Match
from kernelcast.backends._oracle import Oracle, Oracles
from kernelcast.backends._preflight import Watch
from kernelcast.backends._proof import admit, detect_sandbox
from kernelcast.backends._sandbox import Level
from kernelcast.backends._timing import PRECISION, noise_floor
from kernelcast.backends._toolchain import STOPPED, ToolRun
from kernelcast.backends._verify import KnownAnswer, Objection, lint
from kernelcast.canonical import kernel_id
from kernelcast.devices import roofline_s
from kernelcast.errors import ProblemError, SetupError
from kernelcast.types import (
    MAY_BE_FAST,
    TIMING_PROTOCOL,
    Case,
    Device,
    Effort,
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

_EVIDENCE = "evidence"
_KEPT_BUILDS = 256
_KEPT_BYTES = 1 << 30
_MOST_BUILD_BYTES = 256 << 20
_MOST_SOURCE_CHARACTERS = 1 << 18
_KEPT_PROBLEMS = 4
_SHORTEST_CAP_S = 2.0
_NOISE_LASTS_S = 30 * 60.0
_NOISE_SHARE = 0.3
_MOST_USES = 8
_TRIES = 8
_REFERENCE_TRIES = 16
_NOISE_AGAIN_S = 5 * 60.0
_CAUTIOUS_NOISE_LOG2 = math.log2(1.25)
_DRAWING_THREADS = 2
_HIDDEN: dict[Effort, int] = {"screening": 3, "normal": 6, "final": 9}

P = TypeVar("P")
_log = logging.getLogger("kernelcast.backends")


@dataclass(frozen=True)
class Build(Generic[P]):
    """Evidence from compiling, without a kernel id, and a program if it can run."""

    evidence: Evidence
    program: P | None = None
    ptx: Path | None = None
    """The text that the emulator reads, if the compiler made one."""


def too_long(source: str) -> Failure | None:
    """The failure of a source that is too long to be a kernel."""
    if len(source) <= _MOST_SOURCE_CHARACTERS:
        return None
    message = f"the source has {len(source):,} characters; {_MOST_SOURCE_CHARACTERS:,} is the most"
    return Failure(kind=FailureKind.COMPILE_ERROR, message=message)


def _folder_bytes(folder: Path) -> int:
    """What the files take on the disk; a file that is sparse takes less than its length."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # removed in the meantime
            size += 512 * path.lstat().st_blocks
    return size


def _is_lasting(evidence: Evidence) -> bool:
    """Return False if something was stopped for the time that it took."""
    failure = evidence.failure.message if evidence.failure else ""
    rehearsal = evidence.rehearsal
    return not (
        failure.startswith(STOPPED)
        or (rehearsal is not None and rehearsal.undecided.startswith(NOT_FINISHED))
        or evidence.not_emulated.startswith(NOT_FINISHED)
        or evidence.unchecked.startswith(NOT_FINISHED)
    )


class _DrawnInputs:
    """A source of inputs of one case that the problem's own code draws."""

    def __init__(self, oracle: Oracle, problem: Problem, case: Case) -> None:
        self._oracle, self._problem, self._case = oracle, problem, case

    def fill(self, arrays: list[Array], rng: np.random.Generator) -> None:
        """Write new content to the input arrays, flat and in the order of the signature."""
        inputs = self._oracle.inputs(self._problem, self._case, rng)
        for array, drawn in zip(arrays, inputs.values(), strict=True):
            array[:] = drawn.reshape(-1)


class _ProblemData:
    """The oracle of one problem, known answers of it, and sources of inputs.

    A known answer may serve several kernels, because each process sees it once; but not many, and
    none in a final.
    """

    def __init__(self, problem: Problem, oracle: Oracle, rng: np.random.Generator) -> None:
        self.problem = problem
        self._oracle = oracle
        lint(problem, self._oracle, rng, oracle.inputs)
        self._objection: Objection | None = None
        if problem.module is not None and problem.module.check:
            self._objection = oracle.objection
        self._answers: dict[str, tuple[KnownAnswer, int]] = {}
        self.fresh: dict[str, InputSource] = {
            case.name: _DrawnInputs(oracle, problem, case)
            if problem.module is not None and problem.module.draw
            else FreshInputs(problem, case, rng)
            for case in problem.timed_cases
        }

    def answers(
        self, cases: Sequence[Case], rng: np.random.Generator, *, reuse: bool
    ) -> list[KnownAnswer]:
        """One a case, drawn in threads: while one waits for the oracle, the other draws inputs."""
        shared = {case.name for case in cases if not case.name.startswith(HIDDEN)} if reuse else {}

        def draw(case: Case, rng: np.random.Generator) -> KnownAnswer:
            nothing = None, _MOST_USES
            answer, uses = self._answers.get(case.name, nothing) if case.name in shared else nothing
            if answer is None or uses >= _MOST_USES:
                drawn = KnownAnswer.draw(
                    self.problem, case, self._oracle, rng, self._oracle.inputs, self._objection
                )
                answer, uses = drawn, 0
            if case.name in shared:
                self._answers[case.name] = answer, uses + 1
            return answer

        with ThreadPoolExecutor(_DRAWING_THREADS) as pool:
            return list(pool.map(draw, cases, rng.spawn(len(cases))))


class MeasuringBackend(ABC, Generic[P]):
    """A backend without its language. Safe to use from several threads.

    A language's backend states `name` and `languages`, and implements `compile` and `start`. It may
    also override `start_ahead`, `specialised`, `same_build`, `require_device` and `programs`. What
    is compiled and started runs in `sandbox`; `directory` is removed by `close`.

    Args:
        device: The device that kernels run on.
        toolchain: Compiler, version and options: all beside the source that a time depends on.
        compile_timeout_s: Time limit of the compiler.
        device_cap_s: How long one measurement may hold the device; `quote` states it.
        require: The least level of confinement of kernels and compilers. `level` is what was
            proven; below S2, `require` or `allow_unsafe` must allow it.
        allow_unsafe: Measure without a sandbox.
        build_dir: Where builds are kept; the system's temporary folder by default.
        flush_bytes: Memory to stream through before each request.
    """

    name: str
    languages: tuple[Language, ...]
    _pause: Callable[[float], object] = staticmethod(time.sleep)

    def __init__(
        self,
        device: Device,
        toolchain: str,
        compile_timeout_s: float = 30.0,
        device_cap_s: float = 10.0,
        require: Level | None = None,
        *,
        allow_unsafe: bool = False,
        build_dir: str | Path | None = None,
        flush_bytes: int = 0,
    ) -> None:
        if device_cap_s < _SHORTEST_CAP_S:
            raise SetupError(f"device_cap_s is {device_cap_s}: a measurement needs at least 2 s")
        self.sandbox = detect_sandbox()
        self.level: Level = admit(self.sandbox, require, allow_unsafe=allow_unsafe)
        self.device = device
        self.toolchain = toolchain
        self.compile_timeout_s = compile_timeout_s
        self.device_cap_s = device_cap_s
        self._flush_bytes = flush_bytes
        self._time_factor = 1
        self.directory = Path(tempfile.mkdtemp(prefix=f"kernelcast-{self.name}-", dir=build_dir))
        self._lock = threading.Lock()
        self._recalled = False  # a kernel of the cache that compiles
        self._builds: OrderedDict[str, tuple[Build[P], Path]] = OrderedDict()
        self._noise: dict[str, tuple[float, float]] = {}  # log2, and when it was measured
        self._oracles = Oracles(self.sandbox)
        self._problems: OrderedDict[str, _ProblemData] = OrderedDict()
        self._finalizer = weakref.finalize(self, shutil.rmtree, self.directory, ignore_errors=True)

    @abstractmethod
    def compile(self, problem: Problem, case: Case | None, source: str, folder: Path) -> Build[P]:
        """Compile a source for a case, by `run_tool`, in a folder that is kept with the build.

        A source that does not compile is a `Build` whose `evidence` has a failure.
        """

    @abstractmethod
    def start(self, arena: Arena, programs: Mapping[str, P]) -> Child:
        """Start a confined process that loads these programs, one a case."""

    def start_ahead(self, problem: Problem) -> None:
        """Start in the background what the next measurement of this problem needs."""

    def specialised(self, problem: Problem, case: Case | None) -> str:  # noqa: ARG002
        """What a build depends on beside the source; one build serves all cases by default."""
        return ""

    def same_build(self, source: str) -> str:
        """What a source has in common with those that its build serves; itself by default."""
        return source

    def require_device(self) -> None:
        """Raise `NoDevice` where nothing can be launched."""

    def close(self) -> None:
        """Remove what was built, and end the oracles; also done at exit."""
        self._oracles.close()
        self._finalizer()

    def quote(self, problem: Problem) -> Spend:
        """One measurement, and the device for at most `device_cap_s`.

        Raises:
            SetupError: The problem is of another language.
            NoDevice: No device here can run its kernels.
        """
        self._require_language(problem)
        self.require_device()
        return {Resource.MEASUREMENTS: 1.0, Resource.DEVICE_S: self.device_cap_s}

    def inspect(self, problem: Problem, kernel: Kernel) -> Evidence:
        """Compile only. The build is kept, so that measuring later does not compile again.

        If a cache is in use, evidence that it has is not made again.

        Raises:
            SetupError: Neither this kernel nor the seed compiles, and kernels of the cache did.
        """
        self._require_language(problem)
        results = cache.in_use()
        if results is None:
            return self._inspect(problem, kernel)
        basis = (self._evidence_basis(), problem.id, kernel.language)
        same = self.same_build(kernel.source)
        if found := results.get(_EVIDENCE, *basis, same):
            evidence = Evidence.model_validate_json(found)
            self._recalled = self._recalled or evidence.failure is None
            return evidence.model_copy(update={"kernel_id": kernel.id})
        evidence = self._inspect(problem, kernel)
        seed = self._compiled(problem, problem.seed_source).failure if evidence.failure else None
        if seed is not None:
            # The kernel may be fine and the installation broken, so this says nothing of it.
            if self._recalled:
                raise SetupError(
                    f"{self.toolchain} does not compile what it did before: {seed.headline}; "
                    "repair its installation (kernelcast doctor)"
                )
        elif _is_lasting(evidence):
            results.put(evidence.model_dump_json().encode(), _EVIDENCE, *basis, same)
        return evidence

    def _inspect(self, problem: Problem, kernel: Kernel) -> Evidence:
        """Make the evidence of a kernel."""
        evidence = self._compiled(problem, kernel.source)
        return evidence.model_copy(update={"kernel_id": kernel.id})

    def _compiled(self, problem: Problem, source: str) -> Evidence:
        """Return the evidence of compiling a source for the first case, without a kernel id."""
        case = next(iter((*problem.timed_cases, *problem.cases)), None)
        return self._build(problem, case, source).evidence

    def _evidence_basis(self) -> str:
        """Return what evidence depends on beside problem, kernel and kernelcast itself."""
        return "\0".join(
            (
                self.name,
                self.toolchain,
                self.device.model_dump_json(),
                f"{self.compile_timeout_s:g}",
                str(shutil.which("objdump")),
            )
        )

    def measure(
        self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
    ) -> Measurement:
        """Verify on every case, stated and hidden, and time on the timed ones, against the seed.

        Measuring the seed kernel itself gives the noise floor of later measurements. If it is
        unknown or older than half an hour, it is measured first.

        Raises:
            SetupError: The seed kernel itself cannot be measured: it is broken, too slow, or the
                machine has been busy for many minutes.
        """
        watch = Watch.start(self.device)
        # The run's seed can be guessed. The random bits keep a kernel from knowing its inputs.
        rng = np.random.default_rng([seed % 2**63, secrets.randbits(64)])
        outcome, device_s = self._outcome(problem, kernel, rng, effort)
        return Measurement(
            kernel_id=kernel.id,
            problem_id=problem.id,
            device_id=self.device.id,
            toolchain=self.toolchain,
            timing=outcome if isinstance(outcome, Timing) else None,
            failure=outcome if isinstance(outcome, Failure) else None,
            noise_log2=self._noise.get(problem.id, (None,))[0],
            # The ledger reserved no more. Only a busy machine can take longer.
            device_s=min(device_s, self.device_cap_s),
            sandbox=self.level,
            effort=effort,
            protocol=TIMING_PROTOCOL,
            conditions=watch.conditions(self.device),
        )

    def _outcome(
        self, problem: Problem, kernel: Kernel, rng: np.random.Generator, effort: Effort
    ) -> tuple[Timing | Failure, float]:
        """The outcome of a measurement, and its device seconds."""
        built = self.programs(problem, problem.cases, kernel.source)
        if isinstance(built, Failure):
            return built, 0.0
        self.require_device()
        is_reference = kernel.id == kernel_id(problem.seed_source, problem.language)
        spent_s = 0.0
        if not is_reference and self._noise_is_old(problem):
            spent_s = self._renew_noise(problem, rng)
        cap_s = self.device_cap_s - spent_s
        tries = _REFERENCE_TRIES if is_reference else _TRIES
        try:
            outcome, device_s = self._contest(problem, kernel.source, rng, effort, cap_s, tries)
        except MachineBusy as busy:
            if is_reference:
                raise SetupError(
                    f"the seed kernel of {problem.name} could not be measured: {busy}. Run again "
                    "when it is quieter, or continue with `kernelcast resume`"
                ) from busy
            outcome = Failure(kind=FailureKind.TIMEOUT, message=f"{busy}; {MAY_BE_FAST}")
            device_s = cap_s
        if is_reference and isinstance(outcome, Timing):
            self._take_noise(problem, noise_floor(outcome))
        if is_reference and isinstance(outcome, Failure) and outcome.kind is FailureKind.TIMEOUT:
            raise SetupError(
                f"the seed kernel of {problem.name} is too slow to be measured in {cap_s:g} s "
                f"({outcome.message}): make the cases in problem.toml smaller, or write "
                f"`device_cap_s = {3 * cap_s:g}` under [backend] in search.toml and run "
                "`kernelcast search --config search.toml`"
            )
        self.start_ahead(problem)
        return outcome, spent_s + device_s

    def evidence(
        self,
        problem: Problem,
        run: ToolRun,
        *,
        failure: Failure | None = None,
        code: tuple[int, Mapping[str, int]] = (0, {}),
        **facts: Any,
    ) -> Evidence:
        """The evidence of running a compiler.

        Args:
            problem: The problem that the source solves.
            run: The run of the compiler.
            failure: Why the kernel cannot be measured.
            code: Bytes of code and instructions by kind, for example by `native_mix`.
            facts: Further fields of `Evidence`.
        """
        return Evidence(
            kernel_id="",
            toolchain=self.toolchain,
            failure=failure,
            compile_s=run.seconds,
            code_bytes=code[0],
            instructions=code[1],
            roofline_s=None if failure else roofline_s(problem, self.device),
            **facts,
        )

    def _build(self, problem: Problem, case: Case | None, source: str) -> Build[P]:
        """Compile, or return the build that is kept."""
        self._require_language(problem)
        if fault := too_long(source):
            return Build(self.evidence(problem, ToolRun(0, "", 0.0), failure=fault))
        key = content_hash(
            f"{problem.id}\0{self.specialised(problem, case)}\0{self.same_build(source)}"
        )
        with self._lock:
            if key in self._builds:
                self._builds.move_to_end(key)
                return self._builds[key][0]
        folder = Path(tempfile.mkdtemp(dir=self.directory))
        build = self.compile(problem, case, source, folder)
        if (size := _folder_bytes(folder)) > _MOST_BUILD_BYTES:
            shutil.rmtree(folder, ignore_errors=True)
            message = f"compiling leaves {size >> 20} MB; {_MOST_BUILD_BYTES >> 20} MB is the most"
            fault = Failure(kind=FailureKind.COMPILE_ERROR, message=message)
            build = Build(self.evidence(problem, ToolRun(0, "", 0.0), failure=fault))
        with self._lock:
            self._builds[key] = build, folder
            self._discard_builds()
        return build

    def _discard_builds(self) -> None:
        """Remove the builds that were not used for longest, but never the last one."""
        sizes = [_folder_bytes(folder) for _, folder in self._builds.values()]
        total = sum(sizes)
        for size in sizes[:-1]:
            if len(self._builds) <= _KEPT_BUILDS and total <= _KEPT_BYTES:
                return
            total -= size
            _, (_, oldest) = self._builds.popitem(last=False)
            shutil.rmtree(oldest, ignore_errors=True)

    def _require_language(self, problem: Problem) -> None:
        if problem.language not in self.languages:
            raise SetupError(
                f"{problem.name} is a {problem.language} problem; the {self.name} backend takes "
                f"{' and '.join(self.languages)}: name another one with --backend"
            )

    def programs(
        self, problem: Problem, cases: Sequence[Case], source: str
    ) -> dict[str, P] | Failure:
        """The programs by case, or why there is none for one of them."""
        programs = {}
        for case in cases:
            build = self._build(problem, case, source)
            if build.evidence.failure is not None:
                return build.evidence.failure
            if build.program is None:
                self.require_device()
                return Failure(kind=FailureKind.COMPILE_ERROR, message="it cannot be launched")
            programs[case.name] = build.program
        return programs

    def _contest(
        self,
        problem: Problem,
        source: str,
        rng: np.random.Generator,
        effort: Effort,
        cap_s: float,
        tries: int = _TRIES,
    ) -> tuple[Timing | Failure, float]:
        """Measure a source against the seed kernel; also the seconds that the device was held.

        Raises:
            MachineBusy: The machine was too busy in every try.
            ProblemError: The seed kernel is broken.
        """
        data = self._data(problem, rng)
        largest = Arena.of(problem).size
        hidden = hidden_cases(problem, _HIDDEN[effort], largest, rng)
        varied = varied_cases(problem, rng)
        arena = Arena.of(problem, [*hidden, *varied])
        cases = list(arena.cases.values())
        reference = self.programs(problem, cases, problem.seed_source)
        if isinstance(reference, Failure):
            raise ProblemError(
                f"the seed kernel of {problem.name} does not compile:\n{reference.message}"
            )
        candidate = self.programs(problem, cases, source)
        if isinstance(candidate, Failure):
            return candidate, 0.0

        @contextmanager
        def start() -> Iterator[tuple[Child, Child]]:
            # Both processes are new: one that has served before is faster by half a percent.
            with self.start(arena, candidate) as ours, self.start(arena, reference) as theirs:
                yield ours, theirs

        match = Match(
            arena=arena,
            start=start,
            draw=lambda: (data.answers(cases, rng, reuse=effort != "final"), data.fresh),
            surprises={case.name for case in varied},
            rng=rng,
            precision=PRECISION[effort],
            device=self.device,
            flush_bytes=self._flush_bytes,
            cap_s=cap_s,
            tries=tries,
            pause=self._pause,
            time_factor=self._time_factor,
        )
        try:
            return match.play(), match.device_s
        finally:
            # A machine that was busy is likely to be busy still.
            grown = match.time_factor > self._time_factor
            self._time_factor = match.time_factor if grown else max(1, match.time_factor // 2)

    def _data(self, problem: Problem, rng: np.random.Generator) -> _ProblemData:
        with self._lock:
            if problem.id in self._problems:
                self._problems.move_to_end(problem.id)
                return self._problems[problem.id]
        data = _ProblemData(problem, self._oracles.of(problem), rng)
        with self._lock:
            self._problems[problem.id] = data
            if len(self._problems) > _KEPT_PROBLEMS:
                self._problems.popitem(last=False)
        return data

    def _noise_is_old(self, problem: Problem) -> bool:
        measured = self._noise.get(problem.id, (0.0, -math.inf))[1]
        return time.monotonic() - measured > _NOISE_LASTS_S

    def _renew_noise(self, problem: Problem, rng: np.random.Generator) -> float:
        """Measure the noise floor, and return the device seconds that it took.

        If that fails, the last floor or a cautious one is used for five minutes.
        """
        cap_s = _NOISE_SHARE * self.device_cap_s
        try:
            outcome, spent_s = self._contest(problem, problem.seed_source, rng, "screening", cap_s)
        except MachineBusy as busy:
            outcome, spent_s = Failure(kind=FailureKind.TIMEOUT, message=str(busy)), cap_s
        if isinstance(outcome, Timing):
            self._take_noise(problem, noise_floor(outcome))
            return spent_s
        known = problem.id in self._noise
        log2 = self._noise[problem.id][0] if known else _CAUTIOUS_NOISE_LOG2
        self._take_noise(problem, log2, age_s=_NOISE_LASTS_S - _NOISE_AGAIN_S)
        _log.warning(
            "The noise floor of %s could not be measured (%s). %s of %.1f%% is used until it can.",
            *(problem.name, outcome.message),
            *("The last one," if known else "A cautious one,", 100 * (2**log2 - 1)),
        )
        return spent_s

    def _take_noise(self, problem: Problem, log2: float, age_s: float = 0.0) -> None:
        self._noise[problem.id] = log2, time.monotonic() - age_s
