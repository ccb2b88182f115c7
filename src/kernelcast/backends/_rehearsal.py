"""A PyTorch module for a GPU that is not here, run on this CPU: its second stage, after reading.

The CUDA text is built with headers of ours (`_cuda_text`, `headers/cuda`), and the module is called
on the problem's smallest cases. Its outputs are compared with the oracle's, as everywhere. What the
headers, PyTorch on the CPU or the time do not allow says nothing of the module: it is undecided.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from kernelcast.backends._arena import Arena
from kernelcast.backends._child import Child
from kernelcast.backends._headers import CUDA
from kernelcast.backends._inputs import array_bytes
from kernelcast.backends._oracle import Oracle
from kernelcast.backends._reading import LATE
from kernelcast.backends._toolchain import ToolRun
from kernelcast.backends._verify import KnownAnswer
from kernelcast.canonical._vocabulary import vocabulary
from kernelcast.types import Case, Failure, FailureKind, Launched, Problem, Rehearsal

MOST_CPU_S = 60.0
_LOAD_LIMIT_S, _CASE_LIMIT_S = 60.0, 20.0
_MOST_CASES = 2
_MOST_CASE_BYTES, _MOST_NOTED_BYTES = 64 << 20, 256 << 20
_MOST_TEXT = 1000
_CUDA_NAME = re.compile(r"""(["'])cuda(?::0)?\1""")

# What a module raises for want of a GPU, and what PyTorch cannot do on a CPU.
_WANTING = re.compile(
    "kernelcast cannot tell|not compiled with CUDA|NVIDIA|CUDA GPU|CUDA driver|'CUDA' backend|"
    "not implemented for|[Tt]riton|was not built when it was imported|CUDA_HOME|nvcc|cudnn|torch._C"
)
_LACKED = re.compile(
    r"'(?P<name>[\w:<>, ]+?)' (?:was not declared|has not been declared|is not a member of|"
    r"does not name a|is not a class|is not a type|undeclared)|"
    r"(?:no (?:type|member) named|has no member named|no template named) '(?P<member>[\w:]+)'|"
    r"(?P<file>[\w./-]+): No such file"
)
_ERROR = re.compile(r"^\S+?:\d+:(?:\d+:)? (?:fatal )?error: .*$", re.M)
_OWN_NAME = re.compile(
    r"(?:cuda|cu[A-Z]|cub\b|curand|cublas|cudnn|cusparse|nv\w+::|nvcuda|thrust|cutlass|cute|wmma|"
    r"cooperative_groups|cg\b|__)"
)
# Functions of which the headers have every form that CUDA has.
_WHOLE = re.compile(r"'?(?:atomic\w+|min|max|make_\w+)\(")


_Extent = Annotated[int, Field(ge=1, lt=1 << 31)]
_Threads = Annotated[int, Field(ge=1, le=1024)]
_Bytes = Annotated[int, Field(ge=0, lt=1 << 40)]


@dataclass(frozen=True)
class Built:
    """A program, why it cannot be imported, and what compilers said against its extensions."""

    program: Any
    failure: str
    log: str
    cpu_s: float


class Stage(Protocol):
    """Where a module is built and started for a rehearsal."""

    def build(self, problem: Problem, cases: Sequence[Case], source: str) -> Built | ToolRun:
        """Build a module for the CPU."""

    def start(self, arena: Arena, program: Any, timed: Case) -> Any:
        """Start the process in which it runs; it can note what a call on a timed case launches."""


def rehearse(
    problem: Problem, source: str, read: Rehearsal, oracle: Oracle, stage: Stage
) -> tuple[Rehearsal, tuple[Launch, ...]]:
    """Return what a module shows on this CPU, with what reading it showed.

    Beside that, the launches of a call on the first timed case; none if that could not be told. The
    rehearsal then has those of the smallest case.
    """
    run = _Run(problem, source, oracle, stage)
    failure, undecided = None, ""
    try:
        failure = run.failure()
    except _Undecided as why:
        undecided = str(why)[:_MOST_TEXT]
    rehearsal = read.model_copy(
        update={
            "stage": "running",
            "failure": failure,
            "timed_is_right": run.timed_is_right,
            "undecided": undecided,
            "cpu_s": read.cpu_s + run.cpu_s,
            "launches": _summed(run.noted or run.launches),
        }
    )
    return rehearsal, run.noted


class _Undecided(Exception):
    """Why a module cannot be rehearsed to its end."""


class _Run:
    """One rehearsal, what it took, and what the first call launched."""

    def __init__(self, problem: Problem, source: str, oracle: Oracle, stage: Stage) -> None:
        self._problem, self._oracle, self._stage = problem, oracle, stage
        # Modules ask for devices, and compare them, by their names.
        self._source = _CUDA_NAME.sub(r"\1cpu\1", source)
        self.cpu_s = 0.0
        self.timed_is_right = False  # though another case is wrong
        self.launches: tuple[Launch, ...] = ()
        self.noted: tuple[Launch, ...] = ()  # of the timed case, without running them

    def failure(self) -> Failure | None:
        """Build the module, and call it on the smallest cases."""
        problem = self._problem
        sizes = {case.name: array_bytes(problem, case.dimensions) for case in problem.cases}
        small = sorted(problem.cases, key=lambda case: sizes[case.name])[:_MOST_CASES]
        cases = [case for case in small if sizes[case.name] <= _MOST_CASE_BYTES]
        if not cases:
            raise _Undecided("no case is small enough for this CPU")
        reduced = problem.model_copy(update={"cases": tuple(cases)})
        built = self._stage.build(reduced, cases, self._source)
        if isinstance(built, ToolRun):
            late = f"{LATE} the limit of building: " if built.status is None else ""
            raise _Undecided(f"{late}building it ended early: {built.output[-200:].strip()}")
        self.cpu_s += built.cpu_s
        if built.log and (lacked := _lacked(built.log)):
            raise _Undecided(lacked)
        if built.failure:
            return _verdict(Failure(kind=FailureKind.COMPILE_ERROR, message=built.failure))
        failure = self._called(built.program, cases)
        timed = [case for case in problem.timed_cases if sizes[case.name] <= _MOST_CASE_BYTES]
        first = min(timed, key=lambda case: sizes[case.name], default=None)
        if failure is not None and first is not None and first not in cases:
            # A module may be made for some sizes.
            with suppress(_Undecided):
                self.timed_is_right = self._called(built.program, [first]) is None
            if self.timed_is_right:
                message = f"{failure.message}; case {first.name} is right"
                return failure.model_copy(update={"message": message})
        return failure

    def _called(self, program: Any, cases: Sequence[Case]) -> Failure | None:
        """Call the module on these cases in a process of its own, up to the first that is wrong."""
        arena = Arena.of(self._problem.model_copy(update={"cases": tuple(cases)}))
        timed = next(iter(self._problem.timed_cases), cases[0])
        with self._stage.start(arena, program, timed) as child:
            try:
                failure: Failure | None = child.load(_LOAD_LIMIT_S)
                if failure is not None:
                    return _verdict(failure)
                failure = self._wrong(child, cases)
                small = array_bytes(self._problem, timed.dimensions) <= _MOST_NOTED_BYTES
                if failure is None and small:
                    self.noted = launched(child.note_launches(_CASE_LIMIT_S))
                return failure
            finally:
                self.cpu_s += child.cpu_s

    def _wrong(self, child: Any, cases: Sequence[Case]) -> Failure | None:
        problem, oracle, rng = self._problem, self._oracle, np.random.default_rng()
        objection = oracle.objection if problem.module and problem.module.check else None
        for case in cases:
            answer = KnownAnswer.draw(problem, case, oracle, rng, oracle.inputs, objection)
            try:
                failure = called(child, answer)
            except _Undecided:
                if case is cases[0]:
                    raise
                return None  # a smaller one was right
            self.launches = self.launches or launched(child.note())
            if failure is not None:
                return failure
        return None


def called(child: Child, answer: KnownAnswer) -> Failure | None:
    """Why one call on a known answer's inputs is wrong."""
    name = answer.image.case.name
    if failure := child.prepare(name, 1, 0, _CASE_LIMIT_S):
        return _verdict(failure)
    slot = child.memory[: child.arena.layouts[name].stride]
    slot[:] = answer.image.content
    seconds = child.run(name, 1, 0, _CASE_LIMIT_S)
    if isinstance(seconds, Failure):
        return _verdict(seconds)
    return answer.check(slot)


def _verdict(failure: Failure) -> Failure:
    """A failure of the module.

    Raises:
        _Undecided: It is for want of a GPU or of time.
    """
    if failure.kind is FailureKind.TIMEOUT:
        raise _Undecided(f"{LATE} {_CASE_LIMIT_S:g} s on this CPU: {failure.message}")
    if wanting := _WANTING.search(failure.message):
        line = failure.message[: wanting.end()].count("\n")
        raise _Undecided(failure.message.splitlines()[line])
    message = failure.message[:_MOST_TEXT]
    return failure.model_copy(update={"message": message})


def _lacked(log: str) -> str:
    """What building lacked here that a machine with CUDA has; nothing for the module's own faults.

    The first error decides, because others follow from it.
    """
    if log.startswith("unknown: "):
        return log.partition(": ")[2].partition("\n")[0]
    first = _ERROR.search(log)
    if first is None:
        # The linker or the import: a function that is declared and not defined is the module's.
        return "" if "undefined symbol" in log else log.strip().splitlines()[-1]
    second = _ERROR.search(log, first.end())
    told = log[first.start() : second.start() if second else len(log)]
    lacked = _LACKED.search(first[0])
    if lacked is not None:
        name = next(filter(None, lacked.groups()))
        words = set(re.findall(r"\w+", name))
        is_known = bool(words & vocabulary("cuda").names) or lacked["file"]
        if (is_known or _OWN_NAME.match(name)) and not words <= _offered():
            return f"the headers for the CPU lack {name}"
    elif str(CUDA) in told and not _WHOLE.search(first[0]):
        return f"the headers for the CPU may differ: {first[0].partition('error: ')[2]}"
    return ""


@cache
def _offered() -> frozenset[str]:
    """The words of our headers. A text that lacks one of these lacks an #include."""
    texts = (path.read_text() for path in CUDA.rglob("*") if path.is_file())
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


class Launch(BaseModel):
    """Launches of one function with one geometry and like arguments, as a process says.

    An argument is a kind and a value: a pointer's is the number of bytes from there to its end.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    kernel: str = Field(max_length=200)
    grid: tuple[_Extent, _Extent, _Extent]
    block: tuple[_Threads, _Threads, _Threads]
    shared_bytes: int = Field(ge=0, lt=1 << 18)
    count: _Extent
    arguments: tuple[tuple[str, str | _Bytes], ...] = Field(max_length=64)


_LAUNCHES = TypeAdapter(tuple[Launch, ...])


def launched(note: str) -> tuple[Launch, ...]:
    """What a process says that it launched: text of a stranger."""
    with suppress(ValidationError):
        return _LAUNCHES.validate_json(note)
    return ()


def _summed(launches: Sequence[Launch]) -> tuple[Launched, ...]:
    """The launches without their arguments."""
    counts: Counter[tuple[Any, ...]] = Counter()
    for each in launches:
        counts[each.kernel, each.grid, each.block, each.shared_bytes] += each.count
    fields = ("kernel", "grid", "block", "shared_bytes")
    return tuple(
        Launched(**dict(zip(fields, key, strict=True)), count=count)
        for key, count in counts.items()
    )
