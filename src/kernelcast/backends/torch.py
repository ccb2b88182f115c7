"""PyTorch modules and functions: what language models write for KernelBench and GPU MODE.

A candidate is Python, which is hostile code: it is imported, built and called in confined
processes only. Building comes first, in a process that may start compilers; the process that is
measured loads what was built there, and may start and write nothing. `_torch_worker` is the other
end of both.

The parent times the calls alone. On the CPU it reads the outputs where the module made them: the
process has no part in it, and a result that is computed late is not there. What a process takes
beside the calls is charged beyond what the reference's takes.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import stat
import sys
import sysconfig
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kernelcast.backends import _torch_worker
from kernelcast.backends._ahead import Ahead
from kernelcast.backends._arena import Arena, Layout
from kernelcast.backends._calls import NUMPY, case_calls
from kernelcast.backends._child import Child
from kernelcast.backends._cuda_device import launching_sandbox, require_device
from kernelcast.backends._headers import torch_headers
from kernelcast.backends._inputs import array_bytes
from kernelcast.backends._launch import device_flush_bytes, driver_grant
from kernelcast.backends._packages import Packages, require_readable_by_all
from kernelcast.backends._peek import may_peek, peek
from kernelcast.backends._sandbox import LAST_BREATH_S, Grant, Level, Sandbox
from kernelcast.backends._seal import strays
from kernelcast.backends._seccomp import Profile
from kernelcast.backends._toolchain import ToolRun, native_mix, run_tool
from kernelcast.backends.base import Build, MeasuringBackend
from kernelcast.canonical import kernel_id
from kernelcast.devices import detect_cpu, find_device
from kernelcast.errors import NoDevice, SetupError
from kernelcast.types import Case, Device, Failure, FailureKind, Language, Problem

_MEMORY_BYTES = 32 << 30  # of addresses: PyTorch reserves several GB
_DESCRIPTORS = 512
_IMPORT_CPU_S = 60
_WORDS = 4
_MOST_FILE_BYTES = 256 << 20
_COMPILES = re.compile(r"torch\.compile|torch\._(?:dynamo|inductor)|\btriton\b")
_KEPT_BYTES, _LARGEST_KEPT_BYTES = 1 << 40, 1 << 25


@dataclass(frozen=True)
class Program:
    """A module that was built: its folder, and what it built, as `_extensions` notes it."""

    folder: Path
    source: str
    extensions: tuple[tuple[str, tuple[str, str, bool]], ...]

    @property
    def compiles(self) -> bool:
        """Whether it compiles as it runs, by its text."""
        return _COMPILES.search(self.source) is not None


class TorchBackend(MeasuringBackend[Program]):
    """Measures PyTorch code on this machine's CPU, or on its first NVIDIA GPU.

    Args:
        device: The device's description, a name or a `Device`; this CPU by default.
        compile_timeout_s: Time limit of importing a module with all that it builds.
        device_cap_s: How long one measurement may hold the device.
        require: The least level of confinement.
        threads: How many threads PyTorch uses on the CPU; one a core by default.
        allow_unsafe: Measure without a sandbox.

    Raises:
        SetupError: PyTorch is not installed.
    """

    name = "torch"
    languages: tuple[Language, ...] = ("torch",)

    def __init__(
        self,
        device: Device | str | None = None,
        compile_timeout_s: float = 180.0,
        device_cap_s: float = 20.0,
        require: Level | None = None,
        threads: int | None = None,
        *,
        allow_unsafe: bool = False,
    ) -> None:
        if importlib.util.find_spec("torch") is None:
            raise SetupError(
                "PyTorch is not installed: pip install 'kernelcast[torch]' (for this CPU alone, "
                "pip install torch --index-url https://download.pytorch.org/whl/cpu is smaller)"
            )
        chosen = find_device(device) if isinstance(device, str) else device or detect_cpu()
        self._on_cpu = chosen.kind == "cpu"
        self._threads = threads or chosen.cores
        used = f", {self._threads} threads" if self._on_cpu else f", {chosen.target}"
        super().__init__(
            chosen,
            f"torch {importlib.metadata.version('torch')}, "
            f"Python {sys.version_info.major}.{sys.version_info.minor}{used}",
            compile_timeout_s,
            device_cap_s,
            require,
            allow_unsafe=allow_unsafe,
        )
        self._launching = self.sandbox
        if not self._on_cpu:
            self._launching = launching_sandbox(self.sandbox, allow_unsafe=allow_unsafe)
            self.level = self.level if self._launching.mechanisms else "S0"
        self._device_is_here = self._on_cpu
        # No method of this backend, which would keep it from being collected.
        self._waiting = partial(
            TorchChild,
            self._launching,
            self.directory,
            device=chosen,
            threads=self._threads,
            device_cap_s=device_cap_s,
        )
        self._ahead: Ahead[TorchChild] = Ahead(self._waiting)
        weakref.finalize(self, self._ahead.close)

    def require_device(self) -> None:
        """Raise `NoDevice` where there is no such GPU."""
        if not self._device_is_here:
            require_device(self._launching, self.device.target, self.device)
            self._device_is_here = True

    def same_build(self, source: str) -> str:
        """Sources that differ in comments, layout and names share a build, which takes long."""
        return kernel_id(source, self.name)

    def compile(
        self, problem: Problem, _case: Case | None, source: str, folder: Path
    ) -> Build[Program]:
        """Import the module and all that it builds, and call it once on each stated case."""
        if fault := _syntax_fault(source):
            return Build(self.evidence(problem, ToolRun(0, "", 0.0), failure=fault))
        (folder / "kernel.py").write_text(source, encoding="utf-8")
        headers = torch_headers(source)
        job = {
            **_sources(problem, source, self._oracles.weights_seed),
            "cases": [_case_job(problem, case) for case in _by_size(problem, problem.cases)],
            "headers": str(headers or ""),
        }
        (folder / "job.json").write_text(json.dumps(job))
        packages = Packages.of(source)
        run = run_tool(
            self.sandbox,
            [json.dumps(packages.installed)],
            folder,
            self.compile_timeout_s,
            task="_torch_worker.build",
            readable=[*packages.readable, *([headers] if headers else []), *_build_tools()],
            memory_bytes=_MEMORY_BYTES,
            environment=_caches(folder) | {"MAX_JOBS": "1", "PATH": _path()},
        )
        outcome = _outcome(folder)
        if outcome is None:
            failure = run.failure or _compile_error("the process that imports it ended early")
            return Build(self.evidence(problem, run, failure=failure))
        if words := outcome["failure"]:
            return Build(self.evidence(problem, run, failure=_compile_error(words)))
        libraries = sorted(folder.glob("extensions/*/*.so"))
        mixes = [native_mix(self.sandbox, library, library.parent) for library in libraries]
        code: dict[str, int] = {}
        for _, mix in mixes:
            for kind, count in mix.items():
                code[kind] = code.get(kind, 0) + count
        evidence = self.evidence(problem, run, code=(sum(size for size, _ in mixes), code))
        extensions = tuple((key, tuple(made)) for key, made in outcome["extensions"].items())
        return Build(evidence, Program(folder, source, extensions))

    def start(self, arena: Arena, programs: Mapping[str, Program]) -> Child:
        """Start a process for the module, which is the same for all cases."""
        program = next(iter(programs.values()))
        if not program.compiles:
            child = self._ahead.take(arena)
            child.give(program, self._job(arena, program))
            return child
        child = self._waiting(arena, compiles=True)
        child.give(program, self._job(arena, program))
        child.load(self.compile_timeout_s)  # which is not device time
        return child

    def start_ahead(self, problem: Problem) -> None:
        """Start the two processes of the next measurement, which import PyTorch meanwhile."""
        self._ahead.start(Arena.of(problem))

    def close(self) -> None:
        """Remove what was built and started; also done at exit."""
        self._ahead.close()
        super().close()

    def _job(self, arena: Arena, program: Program) -> dict[str, Any]:
        """What a process that is measured is told."""
        problem = arena.problem
        return {
            **_sources(problem, program.source, self._oracles.weights_seed),
            "cases": [
                _case_job(problem, case, arena.layouts[case.name])
                for case in _by_size(problem, arena.cases.values())
            ],
            "device": "cpu" if self._on_cpu else "cuda",
            "flush_bytes": 0 if self._on_cpu else device_flush_bytes(self.device),
            "extensions": dict(program.extensions),
            "compiles": program.compiles,
            "addresses_bytes": _addresses_bytes(problem),
        }


class TorchChild(Child):
    """A process with one module.

    On a device, copies there and back are requests of their own. On the CPU there are none, unless
    the system does not let this program read outputs where they were made: then they are copied in
    the timed request.
    """

    makes_code = True

    def __init__(
        self,
        sandbox: Sandbox,
        directory: Path,
        arena: Arena,
        *,
        device: Device,
        threads: int,
        device_cap_s: float,
        compiles: bool = False,
    ) -> None:
        self.on_cpu = device.kind == "cpu"
        self._compiles = compiles and sandbox.wrapped
        self._answered: tuple[Failure | None] | None = None  # how loading ended
        self._peeks = False  # whether outputs are read where they were made
        self._index: dict[str, int] = {}
        self._folder = Path(tempfile.mkdtemp(dir=directory))
        sandbox.own(self._folder)
        packages = Packages.of("")
        readable = (self._folder, *packages.readable)
        profile: Profile = "measure"
        writable: tuple[Path, ...] = ()
        if self._compiles:
            profile, writable = "compile", (self._folder,)
            readable = (*readable, *_build_tools())
        if sandbox.uid is not None:
            require_readable_by_all(packages.readable)
        memory_bytes = _MEMORY_BYTES + arena.size
        cpu_s = _IMPORT_CPU_S + int(device_cap_s + 1) * device.cores
        grant = (
            Grant(
                *(profile, readable, writable, memory_bytes, cpu_s, _DESCRIPTORS), interprets=True
            )
            if self.on_cpu
            else driver_grant(profile, *readable, writable=writable)
        )
        super().__init__(
            sandbox,
            "_torch_worker.serve",
            [json.dumps(packages.installed), str(self._folder)],
            grant,
            self._folder,
            words=_WORDS,
            arena=arena,
            extra_bytes=_addresses_bytes(arena.problem) + _torch_worker.NOTE_BYTES,
            environment=_caches(self._folder)
            | {
                "OMP_NUM_THREADS": str(threads),
                "MKL_NUM_THREADS": str(threads),
                "OMP_WAIT_POLICY": "passive",
                "HOME": str(self._folder),
                "TMPDIR": str(self._folder),
                "PATH": _path(),
                # Memory that a call gives back is there for the next one, as in a long-lived loop.
                "MALLOC_TRIM_THRESHOLD_": str(_KEPT_BYTES),
                "MALLOC_MMAP_THRESHOLD_": str(_LARGEST_KEPT_BYTES),
            },
        )

    def give(self, program: Program, job: Mapping[str, Any]) -> None:
        """Put the module, what it built and the job where the process will look for them."""
        _copy_files(program.folder, self._folder)
        cases = _by_size(self.arena.problem, self.arena.cases.values())
        self._index = {case.name: index for index, case in enumerate(cases)}
        (self._folder / "job.json").write_text(json.dumps(job))

    def load(self, timeout_s: float) -> Failure | None:
        """Wait until the module is loaded and its process sealed, if that has not been seen."""
        if self._answered is None:
            failure = super().load(timeout_s)
            self._answered = (failure,)
            self._peeks = (
                self.on_cpu and self._worker_pid is not None and may_peek(self._worker_pid)
            )
        return self._answered[0]

    def inspect(self, *, whole: bool = True) -> Failure | None:
        """Look at the sealed process from outside, and for processes that it left behind."""
        worker = self._worker_pid
        if whole and self._compiles and worker and (fault := strays(self.pid, worker)):
            if self._process.ended_within(LAST_BREATH_S):
                return self._obituary()
            self._process.end()
            return Failure(kind=FailureKind.CHEATING, message=fault)
        return super().inspect(whole=whole)

    def words(self, case: str, calls: int, base: int, *, idle: bool) -> list[int]:  # noqa: D102
        phase = _torch_worker.SHOW if self._peeks else _torch_worker.WHOLE
        if not self.on_cpu:
            phase = _torch_worker.RUN
        return [_torch_worker.IDLE if idle else phase, calls, self._index[case], base]

    def prepare(self, case: str, calls: int, base: int, timeout_s: float) -> Failure | None:
        """On the CPU, make tensors of the slots while nothing lies in them yet."""
        self.copies_s = 0.0
        if not self.on_cpu:
            return None
        self.place([self.core])
        return self._copies(_torch_worker.STAGE, case, calls, base, timeout_s)

    def run(self, case: str, calls: int, base: int, timeout_s: float) -> float | Failure:
        """Seconds of the calls, one on each slot, and of noting where the outputs lie."""
        place = case, calls, base
        if self.on_cpu:
            seconds = super().run(*place, timeout_s)
            if isinstance(seconds, Failure) or not self._peeks:
                return seconds
            return self._read_outputs(*place) or seconds
        if failure := self._copies(_torch_worker.STAGE, *place, timeout_s):
            return failure
        seconds = self.call(self.words(*place, idle=False), timeout_s)
        if isinstance(seconds, Failure):
            return seconds
        return self._copies(_torch_worker.FETCH, *place, timeout_s) or seconds

    def _read_outputs(self, case: str, calls: int, base: int) -> Failure | None:
        """Read the outputs into the slots, from where the process says that they lie."""
        layout, arguments = self.arena.layouts[case], self.arena.problem.arguments
        places = [
            slice(base + call * layout.stride + offset, base + call * layout.stride + offset + size)
            for call in range(calls)
            for offset, size, argument in zip(
                layout.offsets, layout.lengths, arguments, strict=True
            )
            if argument.role == "output"
        ]
        addresses = self.memory[self.arena.size :][: 8 * len(places)].view(np.int64).tolist()
        pieces = [
            (address, self.memory[place])
            for address, place in zip(addresses, places, strict=True)
            if address and place.start < place.stop
        ]
        assert self._worker_pid is not None
        if peek(self._worker_pid, pieces):
            return None
        if self._process.ended_within(LAST_BREATH_S):
            return self._obituary()
        self._process.end()
        return Failure(kind=FailureKind.CRASH, message="an output has no memory that can be read")

    def _copies(
        self, phase: int, case: str, calls: int, base: int, timeout_s: float
    ) -> Failure | None:
        """Make a request beside the calls, and count what it takes."""
        self.audit()
        before_s = self.aside_s
        seconds = self.call([phase, calls, self._index[case], base], timeout_s, working=False)
        if isinstance(seconds, Failure):
            return seconds
        self.audit()
        spent_s, self.aside_s = self.aside_s - before_s, before_s
        self.copies_s += spent_s if self.on_cpu else seconds
        return None

    def refused(self, result: int) -> Failure:  # noqa: D102
        kind = {_torch_worker.UNLIKE: FailureKind.WRONG_RESULT}.get(result, FailureKind.CRASH)
        return Failure(kind=kind, message=self._note() or f"the call failed with {result}")

    def ended(self, status: int) -> Failure:  # noqa: D102
        if status == _torch_worker.LOAD_FAILED:
            return _compile_error(self._note() or "the module cannot be built")
        if status == _torch_worker.NO_DEVICE and not self.on_cpu:
            raise NoDevice("PyTorch finds no CUDA device: install its build for CUDA")
        return super().ended(status)

    def _note(self) -> str:
        """What the process says went wrong."""
        words = self.memory[-_torch_worker.NOTE_BYTES :].tobytes().partition(b"\0")[0]
        return _plain(words.decode(errors="replace"))

    def close(self) -> None:
        """End it, and remove its folder."""
        super().close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _sources(problem: Problem, source: str, seed: int) -> dict[str, Any]:
    module = problem.module
    assert module is not None
    return {
        "entry": problem.entry,
        "source": source,
        "seed": seed,
        "reference": "" if module.reference == NUMPY else module.reference,
        "reference_source": problem.oracle_source,
    }


def _addresses_bytes(problem: Problem) -> int:
    outputs = sum(argument.role == "output" for argument in problem.arguments)
    return outputs * _torch_worker.ADDRESSES_BYTES


def _by_size(problem: Problem, cases: Iterable[Case]) -> list[Case]:
    """The smallest first: what is compiled at the first call of a shape then takes the least."""
    return sorted(cases, key=lambda case: array_bytes(problem, case.dimensions))


def _case_job(problem: Problem, case: Case, layout: Layout | None = None) -> dict[str, Any]:
    """A case for the worker: its calls, and where its arrays lie in a slot."""
    calls = case_calls(problem, case)
    places = layout.offsets if layout else [0] * len(problem.arguments)
    return {
        **{key: calls[key] for key in ("init", "call", "returns")},
        "outputs": [name for name, _, _ in calls["outputs"]],
        "stride": layout.stride if layout else 0,
        "is_stated": case in problem.cases,
        "arrays": [
            (argument.name, argument.dtype, argument.extent(case.dimensions), offset)
            for argument, offset in zip(problem.arguments, places, strict=True)
        ],
    }


def _syntax_fault(source: str) -> Failure | None:
    """Why a source is no Python."""
    try:
        ast.parse(source, "kernel.py")
    except SyntaxError as error:
        line = (error.text or "").strip()
        return _compile_error(f"SyntaxError: {error.msg}\nline {error.lineno}: {line}")
    except (ValueError, RecursionError, MemoryError) as error:
        return _compile_error(f"it is no Python: {error}")
    return None


def _compile_error(message: str) -> Failure:
    return Failure(kind=FailureKind.COMPILE_ERROR, message=message)


def _copy_files(source: Path, target: Path) -> None:
    """Copy the plain files of a folder in which a stranger's code has written, and nothing else."""
    for folder, _, names in os.walk(source):
        copy = target / Path(folder).relative_to(source)
        copy.mkdir(exist_ok=True)
        for name in names:
            content = _content(Path(folder) / name)
            if content is not None:
                (copy / name).write_bytes(content)


def _content(path: Path) -> bytes | None:
    """The content of a plain file; None for a link, a pipe or another thing to wait for."""
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return file.read(_MOST_FILE_BYTES)
    return None


def _outcome(folder: Path) -> dict[str, Any] | None:
    """What the process that built a module wrote; None if it wrote nothing of the kind."""
    try:
        outcome = json.loads(_content(folder / _torch_worker.OUTCOME) or b"")
        extensions = {
            str(key): [str(library), str(directory), bool(is_module)]
            for key, (library, directory, is_module) in outcome["extensions"].items()
        }
        return {"failure": _plain(str(outcome["failure"])), "extensions": extensions}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _plain(text: str) -> str:
    """Text without anything that a terminal would obey."""
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


def _caches(folder: Path) -> dict[str, str]:
    """Where PyTorch and Triton keep what they compile: in the folder of one candidate."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCH_EXTENSIONS_DIR": str(folder / "extensions"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }


def _ninja() -> Path | None:
    """The build tool that PyTorch runs: beside this Python, or on the path."""
    beside = Path(sys.executable).with_name("ninja")
    on_path = shutil.which("ninja")
    return beside if beside.exists() else Path(on_path) if on_path else None


def _path() -> str:
    """Where compilers and ninja are looked for."""
    ninja = _ninja()
    folders = [str(ninja.parent)] if ninja else []
    return os.pathsep.join((*folders, os.environ.get("PATH", "")))


def _build_tools() -> list[Path]:
    """What to show of tools that lie outside of the system's trees."""
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    headers = Path(sysconfig.get_paths()["include"])
    there = (tool for tool in (_ninja(), home, headers) if tool is not None and tool.exists())
    tools = [tool.absolute() for tool in there]
    return [tool for tool in tools if not tool.is_relative_to("/usr")]
