"""Reading a PyTorch module that is written for a GPU which is not here: its verdict before any run.

A module is imported, made and called up to its first extension, in a process of its own that the
worker forks (`_reading_worker`), and the text of its extensions is looked at (`_extension_text`).
What fails for want of a GPU, of a package or of a file says nothing of the module.
"""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernelcast.backends._calls import NUMPY, case_calls
from kernelcast.backends._extension_text import Extension
from kernelcast.backends._inputs import array_bytes
from kernelcast.backends._line import Line, hang_up
from kernelcast.backends._oracle import _environment
from kernelcast.backends._packages import Packages, require_readable_by_all
from kernelcast.backends._reading_worker import CONFINED, MOST_BYTES, READY
from kernelcast.backends._sandbox import Confined, Grant, Sandbox, death
from kernelcast.backends._torch_child import plain
from kernelcast.canonical._vocabulary import vocabulary
from kernelcast.errors import SetupError
from kernelcast.types import Case, Failure, FailureKind, Operators, Problem, Rehearsal

_START_LIMIT_S = 120.0
_CPU_S, _LIMIT_S = 10, 60.0
LATE = "not within"  # as `_emulation.NOT_FINISHED` begins, so that it is not kept
_MEMORY_BYTES = 24 << 30  # of addresses
_DESCRIPTORS = 256
_MOST_COUNT = 1 << 62
_MOST_NAMES, _LONGEST_NAME = 200, 40
_MOST_TEXT = 2000

# A module that raises one of these has a fault of its own, whatever the machine and the sizes.
_OWN_FAULTS = {"NameError", "AttributeError", "TypeError", "SyntaxError"}
_BY_INPUTS = {"IndexError", "KeyError", "ZeroDivisionError"}
_WANTING = ("cuda", "nvidia", "gpu", "driver", "triton", "device", "sandbox", "permission")


class _Raised(BaseModel):
    model_config = ConfigDict(frozen=True)

    types: list[str]
    text: str
    on_purpose: bool
    within: bool
    own: bool


class _Called(BaseModel):
    model_config = ConfigDict(frozen=True)

    name: str
    kinds: list[str]
    keywords: list[str]
    extension: str


class _Report(BaseModel):
    """What the process says: text of a stranger."""

    model_config = ConfigDict(frozen=True)

    stage: str
    error: _Raised | None = None
    missing: bool = False
    calls: list[_Called] = Field(default=[], max_length=64)
    extensions: list[dict[str, Any]] = []
    operators: dict[str, Any] | None = None


class Reader:
    """The process that reads modules. It starts at the first one, and again if it ended.

    Safe to use from several threads: one module is read at a time. `cpu_s` is how long one may
    take.
    """

    def __init__(self, sandbox: Sandbox, cpu_s: int = _CPU_S) -> None:
        self._sandbox, self._cpu_s = sandbox, cpu_s
        self._lock = threading.Lock()
        self._line: Line | None = None
        self._process: Confined | None = None

    def read(self, problem: Problem, source: str) -> Rehearsal:
        """Return what reading a module shows.

        Raises:
            SetupError: The process cannot be started here.
        """
        job = _job(problem, source)
        answer = self._asked({**job, "cpu_s": self._cpu_s, "limit_s": _LIMIT_S})
        if isinstance(answer, str):
            return Rehearsal(undecided=answer)
        cpu_s = float(answer["cpu_s"])
        try:
            report = _Report.model_validate_json(answer["report"])
        except ValidationError:
            why = f"reading it ended early: its process {death(-int(answer['signal']))}"
            if answer["late"] or cpu_s >= self._cpu_s:
                why = f"{LATE} {self._cpu_s} CPU seconds"
            return Rehearsal(undecided=why, cpu_s=cpu_s)
        failure, undecided = _verdict(report)
        return Rehearsal(
            failure=failure,
            undecided=undecided,
            cpu_s=cpu_s,
            operators=_operators(report.operators),
        )

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._finalizer()
        self._process = self._line = None

    def _asked(self, job: Mapping[str, Any]) -> Mapping[str, Any] | str:
        """The process's answer, or why there is none."""
        with self._lock:
            if self._process is None or not self._process.alive:
                self._end()
                self._start()
            try:
                return self._exchanged(json.dumps(job).encode() + b"\n")
            except (ValueError, KeyError, TypeError, RecursionError, BrokenPipeError):
                self._end()
                return "the process that reads modules ended"

    def _start(self) -> None:
        packages = Packages.of("")
        readable = tuple(packages.readable)
        if self._sandbox.uid is not None:
            require_readable_by_all(readable)
        line = Line(1)
        grant = Grant(
            "compile",
            readable,
            memory_bytes=_MEMORY_BYTES,
            most_descriptors=_DESCRIPTORS,
            interprets=True,
        )
        process = line.start(
            self._sandbox,
            "_reading_worker.main",
            [json.dumps(packages.installed)],
            grant,
            Path("/"),
            _environment() | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        self._line, self._process = line, process
        self._finalizer = weakref.finalize(self, hang_up, process, line, os.getpid())
        for expected, broken in (
            (CONFINED, "the sandbox did not come into force"),
            (READY, "PyTorch does not load in the sandbox"),
        ):
            if self._chunk(_START_LIMIT_S, 1) != expected:
                self._end()
                raise SetupError(f"{broken}: see `kernelcast doctor`")

    def _exchanged(self, request: bytes) -> Mapping[str, Any]:
        assert self._line is not None
        while request:
            request = request[os.write(self._line.request_fd, request) :]
        text, until = b"", time.monotonic() + 4 * _LIMIT_S
        while not text.endswith(b"\n"):
            piece = self._chunk(max(0.0, until - time.monotonic()), 1 << 16)
            text += piece
            if not piece or len(text) > 8 * MOST_BYTES:
                raise ValueError("no answer")
        answer = json.loads(text)
        return {key: answer[key] for key in ("report", "signal", "late", "cpu_s")}

    def _chunk(self, limit_s: float, most: int) -> bytes:
        assert self._line is not None
        assert self._process is not None
        return self._line.received(self._process, limit_s, most)


def _job(problem: Problem, source: str) -> dict[str, Any]:
    cases = sorted(problem.cases, key=lambda case: array_bytes(problem, case.dimensions))
    module = problem.module
    reference = module.reference if module and module.reference != NUMPY else ""
    return {
        "source": source,
        "entry": problem.entry,
        "seed": 0,
        "case": _case(problem, cases[0]) if module and cases else None,
        "timed": _case(problem, next(iter(problem.timed_cases), cases[0])) if reference else None,
        "reference": reference,
        "reference_source": problem.oracle_source,
    }


def _case(problem: Problem, case: Case) -> dict[str, Any]:
    calls = case_calls(problem, case)
    return {
        **{key: calls[key] for key in ("init", "call", "returns", "outputs")},
        "arrays": [
            (each.name, each.dtype, each.extent(case.dimensions)) for each in problem.arguments
        ],
    }


def _verdict(report: _Report) -> tuple[Failure | None, str]:
    """What is wrong with a module, or why that is not known."""
    extensions = {}
    for told in report.extensions:
        extension = _extension(told)
        if extension is None:
            return None, "its extension cannot be read"
        extensions[extension.name] = extension
        if fault := extension.fault:
            return _failure(FailureKind.COMPILE_ERROR, f"{extension.name}: {fault}"), ""
    if report.missing:
        return _failure(FailureKind.COMPILE_ERROR, "it does not define its entry"), ""
    for called in report.calls[:1]:
        called_in = extensions.get(called.extension)
        if called_in is None or called.keywords:
            continue
        if fault := called_in.call_fault(called.name, called.kinds):
            return _failure(FailureKind.CRASH, fault), ""
    if report.error is not None:
        return _raised(report.error, report.stage)
    return None, ""


def _raised(error: _Raised, stage: str) -> tuple[Failure | None, str]:
    text = error.text.lower()
    headline = error.text.partition("\n")[0]
    kind = FailureKind.COMPILE_ERROR if stage == "import" else FailureKind.CRASH
    names = set(error.types)
    if stage == "result" and "Mismatch" in names:
        return _failure(FailureKind.WRONG_RESULT, error.text), ""
    wants = error.within or any(word in text.partition("\n")[0] for word in _WANTING)
    if names & {"ImportError", "OSError", "MemoryError", "RecursionError"} or wants:
        return None, f"it cannot be read to its end here: {headline}"
    is_own = names & _OWN_FAULTS or (stage == "import" and not error.on_purpose)
    if is_own or (names & _BY_INPUTS and error.own):
        return _failure(kind, error.text), ""
    return None, f"it raises on a small case: {headline}"


def _failure(kind: FailureKind, message: str) -> Failure:
    return Failure(kind=kind, message=plain(message)[:_MOST_TEXT])


def _extension(told: Mapping[str, Any]) -> Extension | None:
    def texts(key: str) -> tuple[str, ...]:
        return tuple(map(str, told[key]))

    try:
        functions = None if told["functions"] is None else texts("functions")
        return Extension(
            str(told["name"])[:_MOST_NAMES],
            texts("cpp"),
            texts("cuda"),
            functions,
            whole=bool(told["whole"]),
        )
    except (KeyError, TypeError):
        return None


def _operators(told: Mapping[str, Any] | None) -> Operators | None:
    """The operators that a process reports, bounded; names that are not PyTorch's are `other`."""
    if told is None:
        return None
    names = vocabulary("torch").members

    def counts(key: str) -> dict[str, int]:
        counted: Counter[str] = Counter()
        for name, count in [*dict(told[key]).items()][:_MOST_NAMES]:
            known = key == "own" or name in names
            counted[plain(str(name))[:_LONGEST_NAME] if known else "other"] += abs(int(count))
        return {name: min(count, _MOST_COUNT) for name, count in counted.items()}

    def moved(key: str) -> int | None:
        value = told[key]
        return value if type(value) is int and 0 <= value < _MOST_COUNT else None

    try:
        return Operators(
            left=counts("left"),
            replaced=counts("replaced"),
            own=counts("own"),
            moved_bytes=moved("moved_bytes"),
            reference_moved_bytes=moved("reference_moved_bytes"),
        )
    except (KeyError, TypeError, ValueError):
        return None
