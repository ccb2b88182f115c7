"""The oracle: a problem's reference.py, asked in a confined process of its own.

A problem may come from elsewhere, so its reference is code of a stranger. It runs in a child
(`_oracle_worker`) that sees Python, the installed packages and nothing else. Inputs and outputs
pass through memory that both share. The parent decides where they lie, copies outputs before it
looks at them, and takes a status, shapes and a bounded text from the child as data. Between
questions the child is stopped, so that it cannot disturb a measurement.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import select
import signal
import struct
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np

from kernelcast.backends._arena import Arena
from kernelcast.backends._calls import case_calls, module_job
from kernelcast.backends._inputs import Array, make_inputs
from kernelcast.backends._line import Line
from kernelcast.backends._oracle_worker import (
    CONFINED,
    HEAD,
    MOST_BYTES,
    NO_FUNCTION,
    NOT_LOADED,
    RAISED,
    READY,
    RETURNED,
)
from kernelcast.backends._packages import Packages, require_readable_by_all
from kernelcast.backends._patience import Patience, cpu_clock, innermost
from kernelcast.backends._sandbox import Grant, Sandbox, death
from kernelcast.dtypes import dtype_of, shown
from kernelcast.errors import ProblemError, SetupError
from kernelcast.types import Argument, Case, Problem

_LIMIT_S = 300.0
_MEMORY_BYTES = 16 << 30  # of addresses: BLAS reserves some for each core, PyTorch several GB
_DESCRIPTORS = 256
_ALIGNMENT = 64
_KEPT = 4
_PASSED_ON = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_Place = tuple[tuple[int, ...], str, int]  # shape, type and offset of an array in the memory
_Named = tuple[str, Array, Argument]


class Oracle:
    """The reference of a problem as a function of inputs and case, which returns float64 outputs.

    Its process starts at the first question and is kept for the next ones. It ends by `close`,
    with this object, or with the program. Safe to use from several threads: one question is
    answered at a time. `limit_s` is how long an answer may take (see `Patience`).
    """

    def __init__(
        self, problem: Problem, sandbox: Sandbox, limit_s: float = _LIMIT_S, weights_seed: int = 0
    ) -> None:
        self._problem = problem
        self._module = module_job(problem, weights_seed)
        self._sandbox = sandbox
        self._limit_s = limit_s
        self._outputs = [each for each in problem.arguments if each.role == "output"]
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def __call__(self, inputs: Mapping[str, Array], case: Case) -> tuple[Array, ...]:
        """Ask for the outputs of these inputs.

        Raises:
            ProblemError: reference.py does not load, defines no function `reference`, or that
                function raises, gives no answer, or returns other arrays than problem.toml says.
            SetupError: The process cannot be started here.
        """
        shapes = [output.extent(case.dimensions) for output in self._outputs]
        if self._module is not None:
            return self._computed(inputs, case, shapes)
        places, size = _places(
            [
                *(
                    (array.shape, shown(array.dtype).str, array.size * shown(array.dtype).itemsize)
                    for array in inputs.values()
                ),
                *((shape, "<f8", 8 * math.prod(shape)) for shape in shapes),
            ]
        )
        request = {
            "inputs": places[: len(inputs)],
            "outputs": places[len(inputs) :],
            "dimensions": dict(case.dimensions),
        }
        with self._asked(case, size) as process:
            for place, array in zip(places, inputs.values(), strict=False):
                process.array(place)[...] = array
            status, payload = process.ask(request, self._limit_s)
            _require(self._where, case, self._outputs, status, payload)
            # Copies: the process may write to the memory at any time.
            return tuple(process.array(place).copy() for place in places[len(inputs) :])

    def inputs(self, problem: Problem, case: Case, rng: np.random.Generator) -> dict[str, Array]:
        """Fresh inputs of a case, which the problem's own code draws if its `Module` says so."""
        if problem.module is None or not problem.module.draw:
            return make_inputs(problem, case, rng)
        drawn = [argument for argument in problem.arguments if argument.role == "input"]
        shapes = [argument.extent(case.dimensions) for argument in drawn]
        places, size = _places(
            (shape, argument.dtype, math.prod(shape) * dtype_of(argument.dtype).bytes)
            for shape, argument in zip(shapes, drawn, strict=True)
        )
        request = {
            "kind": "draw",
            "case": case_calls(problem, case),
            "seed": int(rng.integers(1 << 62)),
            "arrays": [],
            "places": [(dtype, shape, offset) for shape, dtype, offset in places],
        }
        with self._asked(case, size) as process:
            status, payload = process.ask(request, self._limit_s)
            _require(self._where, case, drawn, status, payload)
            arrays = [
                np.ndarray(shape, dtype_of(argument.dtype).numpy, process.memory, offset).copy()
                for argument, (shape, _, offset) in zip(drawn, places, strict=True)
            ]
        return {argument.name: array for argument, array in zip(drawn, arrays, strict=True)}

    def objection(self, case: Case, arrays: Mapping[str, Array]) -> str:
        """What the problem's own check says against outputs, given with their inputs."""
        if self._problem.module is None or not self._problem.module.check:
            return ""
        named, size = self._named(arrays)
        request = {"kind": "check", "case": case_calls(self._problem, case), "places": []}
        with self._asked(case, size) as process:
            arrays_in = self._written(process, named)
            status, payload = process.ask({**request, "arrays": arrays_in}, self._limit_s)
            if status != RETURNED:
                _require(self._where, case, (), status, payload)
            return _printable(payload)

    def _computed(
        self, inputs: Mapping[str, Array], case: Case, shapes: Sequence[tuple[int, ...]]
    ) -> tuple[Array, ...]:
        """The outputs that PyTorch code computes."""
        named, start = self._named(inputs)
        places, size = _places(
            ((shape, "float64", 8 * math.prod(shape)) for shape in shapes), start
        )
        request = {
            "kind": "compute",
            "case": case_calls(self._problem, case),
            "places": [(dtype, shape, offset) for shape, dtype, offset in places],
        }
        with self._asked(case, size) as process:
            arrays = self._written(process, named)
            status, payload = process.ask({**request, "arrays": arrays}, self._limit_s)
            _require(self._where, case, self._outputs, status, payload)
            return tuple(process.array(place).copy() for place in places)

    def _named(self, arrays: Mapping[str, Array]) -> tuple[list[tuple[_Named, _Place]], int]:
        """Arrays as bytes, with the places where they are to lie, and the end of these."""
        arguments = {argument.name: argument for argument in self._problem.arguments}
        flat = [
            (name, np.ascontiguousarray(array).reshape(-1).view(np.uint8), arguments[name])
            for name, array in arrays.items()
        ]
        places, size = _places((array.shape, "uint8", array.nbytes) for _, array, _ in flat)
        return list(zip(flat, places, strict=True)), size

    def _written(
        self, process: _Process, named: Iterable[tuple[_Named, _Place]]
    ) -> list[tuple[str, str, tuple[int, ...], int]]:
        """Write the arrays into the memory; return their names, types, shapes and offsets."""
        written: list[tuple[str, str, tuple[int, ...], int]] = []
        for (name, array, argument), place in named:
            process.array(place)[...] = array
            written.append((name, argument.dtype, self._extents[name], place[2]))
        return written

    @contextmanager
    def _asked(self, case: Case, size: int) -> Iterator[_Process]:
        """The process, locked for one question."""
        with self._lock:
            try:
                self._extents = {
                    argument.name: argument.extent(case.dimensions)
                    for argument in self._problem.arguments
                }
                yield self._started(size)
            except ProblemError:  # an answer, and the process is fine
                raise
            except _NoAnswer as error:
                self._end()
                raise ProblemError(f"{self._where}: case {case.name!r}: {error}") from None
            except BaseException:
                self._end()
                raise

    @property
    def _where(self) -> str:
        return f"{self._problem.name}/reference.py"

    def close(self) -> None:
        """End the process; another question would start it again."""
        with self._lock:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started(self, size: int) -> _Process:
        """A process of this one's with room for so many bytes."""
        if self._process is not None and not self._process.serves(size):
            self._end()
        if self._process is None:
            # An arena has room for all cases; here outputs have 8 bytes an element.
            sizes = (dtype_of(each.dtype).bytes for each in self._problem.arguments)
            narrowest = min(sizes, default=8)
            room = max(size, max(2, 8 // narrowest) * Arena.of(self._problem).size)
            self._process = _Process(self._problem, self._module, self._sandbox, room)
            self._finalizer = weakref.finalize(self, self._process.end)
            self._process.wait_until_ready(_LIMIT_S)
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process = None
            self._finalizer()


class Oracles:
    """The oracles that a backend asked last; one that is left out ends with its last user."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Oracle] = OrderedDict()
        # The weights of all processes of a backend are the same, and no source can know them.
        self.weights_seed = secrets.randbits(62)

    def of(self, problem: Problem) -> Oracle:
        """The oracle of a problem."""
        with self._lock:
            oracle = self._kept.pop(problem.id, None)
            oracle = oracle or Oracle(problem, self._sandbox, weights_seed=self.weights_seed)
            self._kept[problem.id] = oracle
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            return oracle

    def close(self) -> None:
        """End the processes of all that are kept."""
        with self._lock:
            while self._kept:
                self._kept.popitem()[1].close()


class _NoAnswer(Exception):
    """The process gave no proper answer; the message says why."""


class _Process:
    """The confined process with one reference, and the memory it shares with it.

    A fork of this program gets a copy of this object. Only the program that started the process
    asks it and ends it.
    """

    def __init__(
        self, problem: Problem, module: Mapping[str, Any] | None, sandbox: Sandbox, size: int
    ) -> None:
        packages = Packages.of(problem.oracle_source)
        readable = tuple(packages.readable)
        if sandbox.uid is not None:
            require_readable_by_all(readable)
        self._size = size
        self._owner = os.getpid()
        self._line = Line(size)
        grant = Grant(
            "measure",
            readable,
            memory_bytes=_MEMORY_BYTES + size,
            most_descriptors=_DESCRIPTORS,
        )
        self._process = self._line.start(
            sandbox,
            "_oracle_worker.main",
            [json.dumps(asdict(packages))],
            grant,
            Path("/"),
            _environment(),
        )
        where = f"{problem.name}/reference.py"
        self._job = {"where": where, "source": problem.oracle_source, "module": module}

    def serves(self, size: int) -> bool:
        """Whether it answers this program, about so many bytes."""
        return self._owner == os.getpid() and size <= self._size and self._process.alive

    def wait_until_ready(self, limit_s: float) -> None:
        """Wait until the sandbox is in force and NumPy is loaded, and hand over the source.

        Raises:
            SetupError: It ended before that; nothing of the reference has run.
        """
        for expected, broken in (
            (CONFINED, "the sandbox did not come into force"),
            (READY, "NumPy does not load in the sandbox"),
        ):
            if self._wait(self._line.poll, limit_s, 0.0) and self._read(len(expected)) == expected:
                continue
            raise SetupError(f"{broken} ({self._obituary()}): see `kernelcast doctor`")
        self._worker_pid = innermost(self._process.pid)
        self._worker_fd = self._line.keep(os.pidfd_open(self._worker_pid))
        self._send(self._job, limit_s, 0.0)

    def array(self, place: _Place) -> Array:
        """The array at a place of the memory."""
        shape, dtype, offset = place
        return np.ndarray(shape, dtype, self.memory, offset)

    @property
    def memory(self) -> Array:
        """The memory that both share."""
        return self._line.memory

    def ask(self, request: Mapping[str, Any], limit_s: float) -> tuple[int, bytes]:
        """Send a request; the status and the content of the reply.

        Raises:
            _NoAnswer: There is no reply, or not one to this request.
        """
        nonce = secrets.randbits(62)
        cpu_before_s = 0.0
        with suppress(OSError):
            cpu_before_s = time.clock_gettime(cpu_clock(self._worker_pid))
        self._signal(signal.SIGCONT)
        self._send({"nonce": nonce, **request}, limit_s, cpu_before_s)
        if not self._wait(self._line.poll, limit_s, cpu_before_s):
            raise _NoAnswer(f"gave no answer within {limit_s:g} s")
        reply = self._read(MOST_BYTES + 1)
        if not reply:
            raise _NoAnswer(self._obituary())
        if not HEAD.size <= len(reply) <= MOST_BYTES or HEAD.unpack_from(reply)[0] != nonce:
            raise _NoAnswer("forged a reply")
        self._signal(signal.SIGSTOP)
        return HEAD.unpack_from(reply)[1], reply[HEAD.size :]

    def end(self) -> None:
        """Kill the process if it is this program's, and close its pipes."""
        if self._owner == os.getpid():
            self._process.end()
        self._line.close()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._worker_fd, number)

    def _send(self, message: Mapping[str, Any], limit_s: float, cpu_before_s: float) -> None:
        """Write a line. A pipe with room takes a part of it at once; a full one is not read."""
        line = json.dumps(message).encode() + b"\n"
        room = select.poll()
        room.register(self._line.request_fd, select.POLLOUT)
        while line:
            if not self._wait(room, limit_s, cpu_before_s):
                raise _NoAnswer(f"read no question within {limit_s:g} s")
            try:
                line = line[os.write(self._line.request_fd, line[: select.PIPE_BUF]) :]
            except BrokenPipeError:
                raise _NoAnswer(self._obituary()) from None

    def _wait(self, poll: select.poll, limit_s: float, cpu_before_s: float) -> bool:
        """Whether something is ready within the limit."""
        if poll.poll(math.ceil(limit_s * 1e3)):
            return True
        return bool(Patience(self._process.pid, limit_s, cpu_before_s).wait(poll))

    def _read(self, most: int) -> bytes:
        """What the process has written; nothing if it ended without a word."""
        return self._line.read(self._line.poll.poll(0), most)

    def _obituary(self) -> str:
        """How the process ended."""
        status = self._process.fate()
        if status >= 0:
            return f"exited with status {status} and no answer"
        hint = ": out of memory, or it closed its pipe" if status == -signal.SIGKILL else ""
        return f"{death(status)}{hint}"


def _environment() -> dict[str, str]:
    """As many BLAS threads as here, and no path: packages look there for programs to start."""
    return {"PATH": ""} | {name: os.environ[name] for name in _PASSED_ON if name in os.environ}


def _places(
    arrays: Iterable[tuple[tuple[int, ...], str, int]], end: int = 0
) -> tuple[list[_Place], int]:
    """Where arrays of these shapes, types and bytes lie, one after the other, and their end."""
    places = []
    for shape, dtype, size in arrays:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        places.append((shape, dtype, start))
        end = start + size
    return places, end


def _require(
    where: str, case: Case, outputs: Sequence[Argument], status: int, payload: bytes
) -> None:
    """Raise `ProblemError` unless a reply says that the outputs of a case are there."""
    if status == NO_FUNCTION:
        raise ProblemError(f"{where}: define a function reference(inputs..., *, dimensions...)")
    if status == NOT_LOADED:
        raise ProblemError(
            f"{where} does not load: {_printable(payload)}. It may import what is installed beside "
            "NumPy, and read no files"
        )
    if status == RAISED:
        raise ProblemError(f"{where}: case {case.name!r} raised {_printable(payload)}")
    if status != RETURNED or not payload or len(payload) % 8:
        raise _NoAnswer("forged a reply")
    count, *words = struct.unpack(f"<{len(payload) // 8}q", payload)
    if count != len(outputs):
        raise ProblemError(f"{where}: returned {count} arrays, not {len(outputs)}")
    for output in outputs:
        rank = words[0] if words else -1
        if not 0 <= rank < len(words):
            raise _NoAnswer("forged a reply")
        returned, words = tuple(words[1 : 1 + rank]), words[1 + rank :]
        shape = output.extent(case.dimensions)
        if returned != shape:
            raise ProblemError(
                f"{where}: case {case.name!r}: {output.name} has shape {returned}, "
                f"problem.toml says {shape}"
            )


def _printable(text: bytes) -> str:
    """The child's words without anything that a terminal would obey."""
    letters = text.decode(errors="replace")
    return "".join(letter if letter.isprintable() else " " for letter in letters)
