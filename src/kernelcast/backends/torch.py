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
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from kernelcast.backends import _torch_worker
from kernelcast.backends._ahead import Ahead
from kernelcast.backends._arena import Arena, Layout
from kernelcast.backends._calls import NUMPY, case_calls
from kernelcast.backends._child import Child
from kernelcast.backends._cuda_device import launching_sandbox, require_device
from kernelcast.backends._headers import cuda_headers, torch_headers
from kernelcast.backends._launch import device_flush_bytes
from kernelcast.backends._module_counts import emulated
from kernelcast.backends._packages import Packages
from kernelcast.backends._reading import Reader
from kernelcast.backends._rehearsal import MOST_CPU_S, Built, rehearse
from kernelcast.backends._sandbox import Level
from kernelcast.backends._toolchain import ToolRun, find_cuda_tool, native_mix, run_tool
from kernelcast.backends._torch_child import (
    COMPILES,
    MEMORY_BYTES,
    Program,
    TorchChild,
    addresses_bytes,
    build_tools,
    by_size,
    caches,
    compile_error,
    content,
    plain,
    tool_path,
)
from kernelcast.backends.base import Build, MeasuringBackend
from kernelcast.canonical import kernel_id
from kernelcast.devices import detect_cpu, find_device
from kernelcast.emulator.ptx import NotEmulated
from kernelcast.errors import NoDevice, SetupError
from kernelcast.types import (
    Case,
    Device,
    Failure,
    Language,
    Problem,
)

_MOST_LOG, _MOST_CPU_S = 1 << 16, 1e6


class TorchBackend(MeasuringBackend[Program]):
    """Measures PyTorch code on this machine's CPU, or on its first NVIDIA GPU.

    Args:
        device: The device's description, a name or a `Device`; this CPU by default.
        compile_timeout_s: Time limit of importing a module with all that it builds.
        device_cap_s: How long one measurement may hold the device.
        require: The least level of confinement.
        threads: How many threads PyTorch uses on the CPU; one a core by default.
        rehearses: How far a module for a GPU that is not here is tried on this CPU: `reading` takes
            0.1 CPU seconds a module, `running` some 15.
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
        rehearses: Literal["reading", "running"] = "running",
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
        self._device_is_away = False
        self._reader = Reader(self.sandbox)
        self._rehearses = rehearses
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

    def _finds_device(self) -> bool:
        """Whether modules can be built and called on the device here; asked once."""
        if not self._device_is_away:
            try:
                self.require_device()
            except NoDevice:
                self._device_is_away = True
        return not self._device_is_away

    def same_build(self, source: str) -> str:
        """Sources that differ in comments, layout and names share a build, which takes long."""
        return kernel_id(source, self.name)

    def compile(
        self, problem: Problem, _case: Case | None, source: str, folder: Path
    ) -> Build[Program]:
        """Import the module and all that it builds, and call it once on each stated case.

        Where the GPU is not here, the module is rehearsed on the CPU instead.
        """
        if not self._finds_device():
            facts = self._rehearsed(problem, source, folder)
            return Build(self.evidence(problem, ToolRun(0, "", 0.0), **facts))
        if fault := _syntax_fault(source):
            return Build(self.evidence(problem, ToolRun(0, "", 0.0), failure=fault))
        run, outcome = self._built(problem, problem.cases, source, folder)
        if outcome is None:
            failure = run.failure or compile_error("the process that imports it ended early")
            return Build(self.evidence(problem, run, failure=failure))
        if words := outcome["failure"]:
            return Build(self.evidence(problem, run, failure=compile_error(words)))
        libraries = sorted(folder.glob("extensions/*/*.so"))
        mixes = [native_mix(self.sandbox, library, library.parent) for library in libraries]
        code: dict[str, int] = {}
        for _, mix in mixes:
            for kind, count in mix.items():
                code[kind] = code.get(kind, 0) + count
        evidence = self.evidence(problem, run, code=(sum(size for size, _ in mixes), code))
        extensions = tuple((key, tuple(made)) for key, made in outcome["extensions"].items())
        return Build(evidence, Program(folder, source, extensions))

    def _built(
        self,
        problem: Problem,
        cases: Sequence[Case],
        source: str,
        folder: Path,
        *,
        rehearses: bool = False,
    ) -> tuple[ToolRun, dict[str, Any] | None]:
        """Build a module in a folder, in a process that may start compilers; what it says."""
        (folder / "kernel.py").write_text(source, encoding="utf-8")
        short = None if rehearses else torch_headers(source)
        headers = cuda_headers(source) if rehearses else [short] if short else []
        job = {
            **_sources(problem, source, self._oracles.weights_seed),
            "cases": [_case_job(problem, case) for case in by_size(problem, cases)],
            "headers": list(map(str, headers)),
            "rehearses": rehearses,
        }
        (folder / "job.json").write_text(json.dumps(job))
        packages = Packages.of(source)
        run = run_tool(
            self.sandbox,
            [json.dumps(packages.installed)],
            folder,
            self.compile_timeout_s,
            task="_torch_worker.build",
            readable=[*packages.readable, *headers, *build_tools()],
            memory_bytes=MEMORY_BYTES,
            environment=caches(folder) | {"MAX_JOBS": "1", "PATH": tool_path()},
        )
        return run, _outcome(folder)

    def _rehearsed(self, problem: Problem, source: str, folder: Path) -> dict[str, Any]:
        """What a module shows without its device: its text, then on this CPU, then its PTX."""
        rehearsal = self._reader.read(problem, source)
        if self._rehearses == "reading" or problem.module is None:
            return {"rehearsal": rehearsal, "emulation_cpu_s": rehearsal.cpu_s}
        if rehearsal.failure is None and COMPILES.search(source):
            undecided = rehearsal.undecided or "it compiles as it runs: torch.compile or Triton"
            rehearsal = rehearsal.model_copy(update={"undecided": undecided})
        if rehearsal.failure is not None or COMPILES.search(source):
            return {"rehearsal": rehearsal, "emulation_cpu_s": rehearsal.cpu_s}
        oracle, stage = self._oracles.of(problem), _Stage(self, folder)
        rehearsal, launches = rehearse(problem, source, rehearsal, oracle, stage)
        facts = {"rehearsal": rehearsal, "emulation_cpu_s": rehearsal.cpu_s}
        left = rehearsal.operators.left if rehearsal.operators else {"what PyTorch does": 1}
        try:
            if rehearsal.failure is not None or rehearsal.undecided:
                raise NotEmulated("its rehearsal did not come to its end")
            if left:
                raise NotEmulated(f"beside its kernels it calls {', '.join(left)}"[:200])
            case = next(iter(problem.timed_cases)).name
            total = emulated(self.sandbox, self.device, source, launches, case, folder)
        except NotEmulated as error:
            return {**facts, "not_emulated": str(error)}
        cpu_s = rehearsal.cpu_s + total.cpu_s
        return {"rehearsal": rehearsal, "emulated": (total,), "emulation_cpu_s": cpu_s}

    def _evidence_basis(self) -> str:
        tool = not self._on_cpu and find_cuda_tool("nvcc")
        return f"{super()._evidence_basis()}\0{tool}\0{self._rehearses}"

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
        self._reader.close()
        super().close()

    def _job(self, arena: Arena, program: Program, *, timed: Case | None = None) -> dict[str, Any]:
        """What a process that is measured is told; in a rehearsal, with a timed case."""
        rehearses = timed is not None
        problem = arena.problem
        return {
            **_sources(problem, program.source, self._oracles.weights_seed),
            "cases": [
                _case_job(problem, case, arena.layouts[case.name])
                for case in by_size(problem, arena.cases.values())
            ],
            "device": "cpu" if self._on_cpu or rehearses else "cuda",
            "flush_bytes": 0 if self._on_cpu else device_flush_bytes(self.device),
            "extensions": dict(program.extensions),
            "compiles": program.compiles and not rehearses,
            "rehearses": rehearses,
            "timed": _case_job(problem, timed) if timed else None,
            "addresses_bytes": addresses_bytes(problem),
        }


@dataclass(frozen=True)
class _Stage:
    """Where a module is rehearsed: a folder of a backend, and processes on this CPU."""

    backend: TorchBackend
    folder: Path

    def build(self, problem: Problem, cases: Sequence[Case], source: str) -> Built | ToolRun:
        """Build a module for the CPU; the run of the process if it says nothing."""
        backend = self.backend
        run, outcome = backend._built(problem, cases, source, self.folder, rehearses=True)
        if run.failure is not None or outcome is None:
            return run
        extensions = tuple((key, tuple(made)) for key, made in outcome["extensions"].items())
        program = Program(self.folder, source, extensions)
        return Built(program, outcome["failure"], outcome["log"], outcome["cpu_s"])

    def start(self, arena: Arena, program: Program, timed: Case) -> TorchChild:
        """Start the process in which it runs, which may start and write nothing."""
        backend = self.backend
        child = TorchChild(
            *(backend.sandbox, backend.directory, arena),
            device=detect_cpu(),
            threads=1,
            device_cap_s=MOST_CPU_S,
        )
        child.give(program, backend._job(arena, program, timed=timed))
        return child


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
        return compile_error(f"SyntaxError: {error.msg}\nline {error.lineno}: {line}")
    except (ValueError, RecursionError, MemoryError) as error:
        return compile_error(f"it is no Python: {error}")
    return None


def _outcome(folder: Path) -> dict[str, Any] | None:
    """What the process that built a module wrote; None if it wrote nothing of the kind."""
    try:
        outcome = json.loads(content(folder / _torch_worker.OUTCOME) or b"")
        extensions = {
            str(key): [str(library), str(directory), bool(is_module)]
            for key, (library, directory, is_module) in outcome["extensions"].items()
        }
        log, cpu_s = "\n".join(map(str, outcome["log"]))[:_MOST_LOG], float(outcome["cpu_s"])
        if not 0.0 <= cpu_s < _MOST_CPU_S:
            return None
        return {
            "failure": plain(str(outcome["failure"])),
            "extensions": extensions,
            "log": plain(log),
            "cpu_s": cpu_s,
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
