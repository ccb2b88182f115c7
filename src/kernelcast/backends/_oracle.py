"""The oracle: a problem's reference.py, asked in a confined process of its own.

A problem may come from elsewhere, so its reference is code of a stranger. It runs in a child
(`_oracle_worker`) that sees Python, the installed packages and nothing else. Inputs and outputs
pass through memory that both share. The parent decides where they lie, copies outputs before it
looks at them, and takes a status, shapes and a bounded text from the child as data. Between
questions the child is stopped, so that it cannot disturb a measurement.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import secrets
import select
import signal
import stat
import struct
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from kernelcast.backends._arena import Arena
from kernelcast.backends._inputs import Array
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
from kernelcast.backends._patience import Patience, cpu_clock, innermost
from kernelcast.backends._sandbox import Grant, Sandbox, death, interpreter_trees
from kernelcast.errors import ProblemError, SetupError
from kernelcast.types import Argument, Case, Problem

_LIMIT_S = 300.0
_MEMORY_BYTES = 16 << 30  # of addresses: BLAS reserves some for each core, PyTorch several GB
_DESCRIPTORS = 256
_ALIGNMENT = 64
_KEPT = 4
_PASSED_ON = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_IMPORT = re.compile(r"^[ \t]*(?:import|from)[ \t]+([A-Za-z_]\w*)", re.MULTILINE)
_MOST_IMPORTS = 64

_Place = tuple[tuple[int, ...], str, int]  # shape, type and offset of an array in the memory


class Oracle:
    """The reference of a problem as a function of inputs and case, which returns float64 outputs.

    Its process starts at the first question and is kept for the next ones. It ends by `close`,
    with this object, or with the program. Safe to use from several threads: one question is
    answered at a time. `limit_s` is how long an answer may take (see `Patience`).
    """

    def __init__(self, problem: Problem, sandbox: Sandbox, limit_s: float = _LIMIT_S) -> None:
        self._problem = problem
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
        places, size = _places(
            [
                *((array.shape, array.dtype.str, array.nbytes) for array in inputs.values()),
                *((shape, "<f8", 8 * math.prod(shape)) for shape in shapes),
            ]
        )
        where = f"{self._problem.name}/reference.py"
        with self._lock:
            try:
                process = self._started(size)
                for place, array in zip(places, inputs.values(), strict=False):
                    process.array(place)[...] = array
                status, payload = process.ask(
                    {
                        "inputs": places[: len(inputs)],
                        "outputs": places[len(inputs) :],
                        "dimensions": dict(case.dimensions),
                    },
                    self._limit_s,
                )
                _require(where, case, self._outputs, status, payload)
                # Copies: the process may write to the memory at any time.
                return tuple(process.array(place).copy() for place in places[len(inputs) :])
            except ProblemError:  # an answer, and the process is fine
                raise
            except _NoAnswer as error:
                self._end()
                raise ProblemError(f"{where}: case {case.name!r}: {error}") from None
            except BaseException:
                self._end()
                raise

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
            # Outputs are at most twice as large as in an arena, in which all cases find room.
            room = max(size, 2 * Arena.of(self._problem).size)
            self._process = _Process(self._problem, self._sandbox, room)
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

    def of(self, problem: Problem) -> Oracle:
        """The oracle of a problem."""
        with self._lock:
            oracle = self._kept.pop(problem.id, None) or Oracle(problem, self._sandbox)
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

    def __init__(self, problem: Problem, sandbox: Sandbox, size: int) -> None:
        packages = _Packages.of(problem.oracle_source)
        readable = (*map(Path, interpreter_trees()), *packages.readable)
        if sandbox.uid is not None:
            _require_readable_by_all(readable)
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
        self._job = {"where": f"{problem.name}/reference.py", "source": problem.oracle_source}

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
        return np.ndarray(shape, dtype, self._line.memory, offset)

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


def _places(arrays: Iterable[tuple[tuple[int, ...], str, int]]) -> tuple[list[_Place], int]:
    """Where arrays of these shapes, types and bytes lie, one after the other, and their end."""
    places, end = [], 0
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


@dataclass(frozen=True)
class _Packages:
    """What a reference may import: everything that is installed, and what it names itself.

    The latter are packages that are installed to be edited, by name, wherever they are. A folder
    that contains the home or the working folder is never readable, nor is a repository.
    """

    installed: list[str]
    edited: dict[str, str]

    @classmethod
    def of(cls, source: str) -> _Packages:
        """The packages of a reference, found without running or importing anything."""
        folders = [path for path in map(_real, sys.path) if path.name in _PACKAGE_FOLDERS]
        installed = [path for path in dict.fromkeys(folders) if path.is_dir()]
        readable = [*installed, *map(Path, interpreter_trees())]
        private = [Path.home().resolve(), Path.cwd()]
        edited = {}
        for name in [*dict.fromkeys(_IMPORT.findall(source))][:_MOST_IMPORTS]:
            folder = _package_folder(name)
            if (
                folder is not None
                and not any(folder.is_relative_to(tree) for tree in readable)
                and not any(path.is_relative_to(folder) for path in private)
                and not (folder / ".git").exists()
            ):
                edited[name] = str(folder)
        return cls(list(map(str, installed)), edited)

    @property
    def readable(self) -> Iterator[Path]:
        """The folders to show to the reference."""
        return map(Path, (*self.installed, *self.edited.values()))


def _require_readable_by_all(folders: Iterable[Path]) -> None:
    """Raise `SetupError` if a process that becomes another user could not read a folder."""
    for folder in folders:
        for path in (folder, *folder.parents):
            if not path.stat().st_mode & stat.S_IXOTH:
                raise SetupError(
                    f"the sandbox runs reference.py as another user, which may not read {folder}: "
                    "install bubblewrap, or Python and its packages where every user may read them"
                )


def _real(path: str) -> Path:
    return Path(os.path.realpath(path))


def _package_folder(name: str) -> Path | None:
    """The folder of an importable package; None for a module without one."""
    with suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(name)
        if spec and spec.origin and spec.submodule_search_locations:
            return _real(spec.origin).parent
    return None
