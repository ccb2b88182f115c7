"""C++ kernels on the CPU: compile, inspect, and measure against the problem's seed kernel.

Candidate and reference each run in a process of their own (`_child`, `_worker`); what is timed is
decided in `_timing`, what is right in `_verify`. Here are the compiler, the reading of its output
and the order of a measurement. All that runs foreign code, the compiler too, is confined by
`_sandbox`. A measurement holds the device from the moment its inputs are there; compiling, drawing
inputs and asking the oracle come before and are not device time.
"""

from __future__ import annotations

import math
import re
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kernelcast.backends._child import Child
from kernelcast.backends._sandbox import Grant, Level, Sandbox, admit
from kernelcast.backends._timing import (
    NOISE_FLOOR,
    SCREENING,
    Precision,
    noise_floor,
    time_pairs,
)
from kernelcast.backends._verify import Layout, Sample, oracle
from kernelcast.canonical import kernel_id
from kernelcast.devices import detect_cpu, roofline_s
from kernelcast.errors import ProblemError, SetupError
from kernelcast.types import (
    Device,
    Evidence,
    Failure,
    FailureKind,
    Kernel,
    Measurement,
    Problem,
    Resource,
    Spend,
    Timing,
    content_hash,
)

FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")

_FEWEST_INPUT_SETS = 2
_MOST_INPUT_SETS = 4
_INPUT_BYTES = 8 << 20
_DRAWING_THREADS = 2
_MOST_CALLS = 256
_BATCH_BYTES = 16 << 20
_MEMORY_BYTES = 4 << 30
_MESSAGE_LINES = 20
_MESSAGE_BYTES = 16_384
_KEPT_BUILDS = 256
_LOAD_TIMEOUT_S = 5.0
_DISASSEMBLY_TIMEOUT_S = 30.0
_TIMEOUT_FACTOR = 20.0
_TIMEOUT_SLACK_S = 1.0
_CLEANUP_MARGIN_S = 0.5


@dataclass(frozen=True)
class _Build:
    """A compiled library, or why there is none."""

    library: Path | None
    failure: Failure | None
    compile_s: float


class _Arena:
    """How every child of a problem lays out its memory: slots by case, one a call."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.layouts = {case.name: Layout.of(problem, case) for case in problem.cases}
        self.dimensions = {
            case.name: [case.dimensions[name] for name in problem.dimensions]
            for case in problem.cases
        }
        self.slots = {
            name: min(_MOST_CALLS, max(1, _BATCH_BYTES // layout.stride))
            for name, layout in self.layouts.items()
        }
        self.input_sets = {
            name: min(_MOST_INPUT_SETS, max(_FEWEST_INPUT_SETS, _INPUT_BYTES // layout.stride))
            for name, layout in self.layouts.items()
        }
        self.size = max(self.slots[name] * each.stride for name, each in self.layouts.items())


class _Runner:
    """One child with the inputs of one measurement: writes them, calls, verifies every output."""

    def __init__(
        self, child: Child, arena: _Arena, samples: Mapping[str, Sequence[Sample]], deadline: float
    ) -> None:
        self._child = child
        self._arena = arena
        self._samples = samples
        self._deadline = deadline
        self._call_timeout_s = dict.fromkeys(arena.layouts, math.inf)

    def verify_all(self, reference_s: Mapping[str, float]) -> Failure | None:
        """Run every case once; from then on, very much slower calls than these are cut short."""
        self._call_timeout_s = {case: _TIMEOUT_FACTOR * s for case, s in reference_s.items()}
        outcomes = (self.run(case, [0]) for case in reference_s)
        return next((each for each in outcomes if isinstance(each, Failure)), None)

    def most_calls(self, case: str) -> int:
        """How many slots the arena has for this case."""
        return self._arena.slots[case]

    def idle(self, case: str, calls: int) -> float | Failure:
        """Seconds of a request that calls a stub instead of the kernel."""
        return self._request(case, calls, stub=True)

    def run(self, case: str, inputs: Sequence[int]) -> float | Failure:
        """Seconds of one request, a call on each input set; a wrong output is a failure."""
        slots, seconds = self._run(case, inputs)
        if isinstance(seconds, Failure):
            return seconds
        samples = self._samples[case]
        checks = (samples[which].check(slot) for slot, which in zip(slots, inputs, strict=True))
        return next(filter(None, checks), seconds)

    def _run(self, case: str, inputs: Sequence[int]) -> tuple[NDArray[np.uint8], float | Failure]:
        """The slots after one request, and its seconds."""
        stride = self._arena.layouts[case].stride
        slots = self._child.memory[: len(inputs) * stride].reshape(len(inputs), stride)
        for slot, which in zip(slots, inputs, strict=True):
            slot[:] = self._samples[case][which].image
        # A child that slept answers late; a stub call wakes it before the clock starts.
        awake = self.idle(case, 1)
        return slots, awake if isinstance(awake, Failure) else self._request(case, len(inputs))

    def _request(self, case: str, calls: int, *, stub: bool = False) -> float | Failure:
        layout = self._arena.layouts[case]
        limit_s = _TIMEOUT_SLACK_S + calls * self._call_timeout_s[case]
        return self._child.call(
            layout.offsets,
            self._arena.dimensions[case],
            calls=calls,
            stride=layout.stride,
            timeout_s=max(0.0, min(limit_s, self._deadline - time.perf_counter())),
            stub=stub,
        )


class _ReferenceLost(Exception):
    """The reference's process failed; the candidate is not to blame."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class _ReferenceRunner(_Runner):
    """The seed kernel: its failures are not values, because they are not about the candidate."""

    def run(self, case: str, inputs: Sequence[int]) -> float:
        """Seconds of one request, verified like the candidate's: what the parent does between two
        requests moves caches about, so it must do the same for both.
        """
        return _or_lost(super().run(case, inputs))

    def idle(self, case: str, calls: int) -> float:
        """Seconds of a request that calls a stub instead of the kernel."""
        return _or_lost(super().idle(case, calls))


def _or_lost(outcome: float | Failure) -> float:
    if isinstance(outcome, Failure):
        raise _ReferenceLost(outcome)
    return outcome


class CppBackend:
    """Measures C++ kernels on this machine's CPU. Safe to use from several threads.

    `device_cap_s` bounds how long one measurement may hold the device and is what `quote` states.
    Kernels and their compiler are confined, at least to the level `require` if it is given;
    where nothing confines them (S0), only with `allow_unsafe`. `level` is what was proven.
    """

    name = "cpp"

    def __init__(
        self,
        device: Device | None = None,
        compiler: str = "g++",
        flags: Sequence[str] = FLAGS,
        compile_timeout_s: float = 30.0,
        device_cap_s: float = 10.0,
        build_dir: str | Path | None = None,
        require: Level | None = None,
        *,
        allow_unsafe: bool = False,
    ) -> None:
        found = shutil.which(compiler)
        if found is None:
            raise SetupError(
                f"the C++ compiler {compiler!r} was not found: "
                "install it (apt-get install g++) or name another one with `compiler`"
            )
        if device_cap_s < 2.0:
            raise SetupError(f"device_cap_s is {device_cap_s}: a measurement needs at least 2 s")
        self._sandbox = Sandbox.detect()
        self.level: Level = admit(self._sandbox, require, allow_unsafe=allow_unsafe)
        self.device = device or detect_cpu()
        self._command = (found, *flags)
        self._compile_timeout_s = compile_timeout_s
        self._device_cap_s = device_cap_s
        version = subprocess.run(
            [found, "--version"], capture_output=True, text=True, check=True, timeout=30
        ).stdout
        flags_hash = content_hash("\0".join(flags))[:8]
        self.toolchain = f"{version.partition(chr(10))[0]}, flags {flags_hash}"
        self._directory = Path(tempfile.mkdtemp(prefix="kernelcast-cpp-", dir=build_dir))
        self._lock = threading.Lock()
        self._builds: OrderedDict[str, _Build] = OrderedDict()
        self._references: dict[str, list[Child]] = {}
        self._noise_log2: dict[str, float] = {}
        self._finalizer = weakref.finalize(self, _clean_up, self._directory, self._references)

    def close(self) -> None:
        """End the reference processes and remove what was built; also done at exit."""
        self._finalizer()

    def quote(self, _problem: Problem) -> Spend:
        """One measurement, and the device for at most `device_cap_s`."""
        return {Resource.MEASUREMENTS: 1.0, Resource.DEVICE_S: self._device_cap_s}

    # --------------------------------------------------------------------------- inspecting

    def inspect(self, problem: Problem, kernel: Kernel) -> Evidence:
        """Compile only: size and mix of the machine code, and the roofline's lower bound."""
        build = self._build(problem, kernel.source)
        if build.library is None:
            return Evidence(
                kernel_id=kernel.id,
                toolchain=self.toolchain,
                failure=build.failure,
                compile_s=build.compile_s,
            )
        code_bytes, instructions = self._disassemble(build.library)
        return Evidence(
            kernel_id=kernel.id,
            toolchain=self.toolchain,
            compile_s=build.compile_s,
            code_bytes=code_bytes,
            instructions=instructions,
            roofline_s=roofline_s(problem, self.device),
        )

    def _build(self, problem: Problem, source: str) -> _Build:
        """Compile, or take what was compiled before: inspecting and measuring compile once."""
        if problem.language != "cpp":
            raise SetupError(
                f"{problem.name} is a {problem.language} problem; the cpp backend cannot run it"
            )
        key = content_hash(f"{problem.entry}\0{source}")
        with self._lock:
            if key in self._builds:
                self._builds.move_to_end(key)
                return self._builds[key]
        build = self._compile(problem.entry, source)
        with self._lock:
            self._builds[key] = build
            if len(self._builds) > _KEPT_BUILDS:
                _, oldest = self._builds.popitem(last=False)
                if oldest.library is not None:
                    shutil.rmtree(oldest.library.parent, ignore_errors=True)
        return build

    def _compile(self, entry: str, source: str) -> _Build:
        folder = Path(tempfile.mkdtemp(dir=self._directory))
        (folder / "kernel.cpp").write_text(source, encoding="utf-8")
        self._sandbox.own(folder)
        linker = (f"-Wl,--require-defined={entry}", "-Wl,-z,defs")
        command = [*self._command, *linker, "kernel.cpp", "-o", "kernel.so"]
        started = time.perf_counter()
        with (folder / "messages").open("wb") as messages:
            process = self._sandbox.run_program(command, self._grant(folder), folder, messages)
            in_time = process.ended_within(self._compile_timeout_s)
            status = process.end()
        compile_s = time.perf_counter() - started
        if status == 0:
            return _Build(folder / "kernel.so", None, compile_s)
        with (folder / "messages").open("rb") as said:
            text = said.read(_MESSAGE_BYTES).decode(errors="replace")
        shutil.rmtree(folder, ignore_errors=True)
        if not in_time:
            text = f"the compiler was stopped after {self._compile_timeout_s:g} s\n{text}"
        message = "\n".join(text.splitlines()[:_MESSAGE_LINES])
        message = message or f"the compiler ended with status {status}"
        failure = Failure(kind=FailureKind.COMPILE_ERROR, message=message)
        return _Build(None, failure, compile_s)

    def _grant(self, folder: Path) -> Grant:
        return Grant(
            "compile",
            writable=(folder,),
            memory_bytes=_MEMORY_BYTES,
            cpu_s=math.ceil(self._compile_timeout_s),
        )

    def _disassemble(self, library: Path) -> tuple[int, dict[str, int]]:
        """Bytes of code, and instructions by kind; nothing where objdump is not installed."""
        objdump = shutil.which("objdump")
        if objdump is None:
            return 0, {}
        command = [objdump, "-h", "-d", "-j", ".text", "--no-show-raw-insn", str(library)]
        with tempfile.TemporaryFile() as listing:
            process = self._sandbox.run_program(
                command, self._grant(library.parent), library.parent, listing
            )
            process.ended_within(_DISASSEMBLY_TIMEOUT_S)
            if process.end() != 0:
                return 0, {}
            listing.seek(0)
            return _count_instructions(listing.read().decode(errors="replace"))

    # ---------------------------------------------------------------------------- measuring

    def measure(self, problem: Problem, kernel: Kernel, seed: int) -> Measurement:
        """Verify on every case and time on the timed ones, against the seed kernel.

        Measuring the seed kernel itself gives the noise floor of later measurements.
        """
        reference = self._build(problem, problem.seed_source)
        if reference.library is None:
            said = reference.failure.message if reference.failure else ""
            raise ProblemError(f"the seed kernel of {problem.name} does not compile:\n{said}")
        candidate = self._build(problem, kernel.source)
        if candidate.library is None:
            return self._measurement(problem, kernel, candidate.failure, 0.0)
        # The run's seed can be guessed, the rest cannot: no kernel knows its inputs in advance.
        rng = np.random.default_rng([seed % 2**63, secrets.randbits(64)])
        arena = _Arena(problem)
        is_reference = kernel.id == kernel_id(problem.seed_source, problem.language)
        # Its process starts while the inputs are drawn, and then waits for its first request.
        with self._start(arena, candidate.library, kept=False) as candidate_child:
            samples = _draw(arena, rng)
            started = time.perf_counter()
            outcome = self._compare(
                arena,
                reference.library,
                candidate.library,
                candidate_child,
                samples,
                rng,
                NOISE_FLOOR if is_reference else SCREENING,
                deadline=started + self._device_cap_s - _CLEANUP_MARGIN_S,
            )
        device_s = time.perf_counter() - started
        if is_reference and isinstance(outcome, Timing):
            with self._lock:
                self._noise_log2[problem.id] = noise_floor(outcome)
        return self._measurement(problem, kernel, outcome, device_s)

    def _measurement(
        self, problem: Problem, kernel: Kernel, outcome: Timing | Failure | None, device_s: float
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
            # Only a parent that was itself stalled can be late, and the ledger reserved no more.
            device_s=min(device_s, self._device_cap_s),
            sandbox=self.level,
        )

    def _compare(
        self,
        arena: _Arena,
        reference: Path,
        candidate: Path,
        first_child: Child,
        samples: Mapping[str, Sequence[Sample]],
        rng: np.random.Generator,
        precision: Precision,
        deadline: float,
    ) -> Timing | Failure:
        """Run both; once again if the reference's process died, for that is no one's verdict."""
        problem = arena.problem
        timed = {case.name: arena.input_sets[case.name] for case in problem.timed_cases}
        for fresh in (False, True):
            try:
                with self._reference(arena, reference, deadline, fresh=fresh) as their_child:
                    theirs = _ReferenceRunner(their_child, arena, samples, deadline)
                    baseline_s = self._baseline(theirs, problem)
                    again = self._start(arena, candidate, kept=False) if fresh else None
                    with again or first_child as our_child:
                        ours = _Runner(our_child, arena, samples, deadline)
                        return (
                            our_child.load(_load_timeout(deadline))
                            or ours.verify_all(baseline_s)
                            or time_pairs(timed, ours, theirs, rng, precision, deadline)
                        )
            except _ReferenceLost as lost:
                failure = lost.failure
            if failure.kind is FailureKind.TIMEOUT:
                return Failure(
                    kind=FailureKind.TIMEOUT,
                    message=f"not measured within {self._device_cap_s:g} s",
                )
            if failure.kind is not FailureKind.CRASH:
                break
        raise ProblemError(
            f"the seed kernel of {problem.name} failed ({failure.kind}: {failure.message}): "
            "mend its seed.cpp, or its reference.py if that is wrong"
        )

    def _baseline(self, theirs: _ReferenceRunner, problem: Problem) -> dict[str, float]:
        """Seconds of the reference by case, all outputs verified."""
        try:
            return {case.name: theirs.run(case.name, [0]) for case in problem.cases}
        except _ReferenceLost as lost:
            if lost.failure.kind is not FailureKind.TIMEOUT:
                raise
        raise SetupError(
            f"the seed kernel of {problem.name} is too slow for device_cap_s = "
            f"{self._device_cap_s:g}: raise it, or make the problem's cases smaller"
        )

    @contextmanager
    def _reference(
        self, arena: _Arena, library: Path, deadline: float, *, fresh: bool
    ) -> Iterator[Child]:
        """A warm process of the seed kernel, used by one measurement at a time."""
        with self._lock:
            idle = self._references.setdefault(arena.problem.id, [])
            child = idle.pop() if idle and not fresh else None
        if child is not None and not child.alive:
            child.close()
            child = None
        if child is None:
            child = self._start(arena, library, kept=True)
            if failure := child.load(_load_timeout(deadline)):
                child.close()
                raise _ReferenceLost(failure)
        try:
            yield child
        except BaseException:
            child.close()
            raise
        with self._lock:
            idle.append(child)

    def _start(self, arena: _Arena, library: Path, *, kept: bool) -> Child:
        cores = self.device.cores
        return Child(
            library,
            arena.problem.entry,
            len(arena.problem.arguments),
            len(arena.problem.dimensions),
            arena.size,
            sandbox=self._sandbox,
            threads=cores,
            cpu_s=None if kept else math.ceil(self._device_cap_s) * cores,
            memory_bytes=_MEMORY_BYTES,
        )


def _load_timeout(deadline: float) -> float:
    return max(0.0, min(_LOAD_TIMEOUT_S, deadline - time.perf_counter()))


def _draw(arena: _Arena, rng: np.random.Generator) -> dict[str, list[Sample]]:
    """Input sets by case, drawn side by side: NumPy lets go of the lock on large arrays."""
    expected = oracle(arena.problem)
    wanted = [
        case
        for case in arena.problem.cases
        for _ in range(arena.input_sets[case.name] if case.timed else 1)
    ]
    samples: dict[str, list[Sample]] = {case.name: [] for case in arena.problem.cases}
    with ThreadPoolExecutor(_DRAWING_THREADS) as pool:
        drawn = pool.map(
            lambda case, stream: Sample.draw(arena.problem, case, expected, stream),
            wanted,
            rng.spawn(len(wanted)),
        )
        for case, sample in zip(wanted, drawn, strict=True):
            samples[case.name].append(sample)
    return samples


def _clean_up(directory: Path, references: dict[str, list[Child]]) -> None:
    for child in (child for idle in references.values() for child in idle):
        child.close()
    references.clear()
    shutil.rmtree(directory, ignore_errors=True)


# ------------------------------------------------------------------------------------ evidence

_TEXT_SECTION = re.compile(r"^\s*\d+\s+\.text\s+([0-9a-f]+)", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s*[0-9a-f]+:\t(\S+)[ \t]*(.*)$", re.MULTILINE)
_PACKED = re.compile(r"[xyz]mm|\bv\d+\.\d+[bhsd]")
_SCALAR = re.compile(r"s[sd]$")


def _count_instructions(listing: str) -> tuple[int, dict[str, int]]:
    """Bytes of code, and instructions by kind, from objdump's listing.

    Kinds overlap: a vector load counts as vector and as memory. `stack` are accesses relative to
    the stack pointer, most of them spills.
    """
    section = _TEXT_SECTION.search(listing)
    mix: Counter[str] = Counter(
        dict.fromkeys(
            ("total", "vector", "zmm", "ymm", "scalar", "fma", "memory", "stack", "branch", "call"),
            0,
        )
    )
    for mnemonic, operands in _INSTRUCTION.findall(listing):
        mix["total"] += 1
        if mnemonic.startswith("j"):
            mix["branch"] += 1
        elif mnemonic.startswith("call"):
            mix["call"] += 1
        elif _PACKED.search(operands):
            if _SCALAR.search(mnemonic):
                mix["scalar"] += 1
            else:
                mix["vector"] += 1
                mix["zmm"] += "zmm" in operands
                mix["ymm"] += "ymm" in operands and "zmm" not in operands
            mix["fma"] += mnemonic.startswith(("vfm", "vfnm"))
        if "(" in operands and not mnemonic.startswith(("lea", "nop")):
            mix["memory"] += 1
            mix["stack"] += "(%rsp" in operands
    return int(section[1], 16) if section else 0, dict(mix)
