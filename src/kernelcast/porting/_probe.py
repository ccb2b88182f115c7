"""The parent of `_probe_worker`: what a file does for given sizes, as checked records."""

from __future__ import annotations

import json
import os
import time
import weakref
from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernelcast.backends._line import Line, hang_up
from kernelcast.backends._oracle import _environment, _printable
from kernelcast.backends._packages import Packages, require_readable_by_all
from kernelcast.backends._sandbox import Confined, Grant, Sandbox, death, interpreter_trees
from kernelcast.errors import ProblemError, SetupError
from kernelcast.porting._probe_worker import CONFINED, READY
from kernelcast.structure import Nested

_LIMIT_S = 120.0
_MEMORY_BYTES = 24 << 30  # of addresses
_DESCRIPTORS = 256
_MOST_REPLY = 16 << 20


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Tensor(_Closed):
    """A tensor of the arguments or of the result."""

    name: str = Field(pattern=r"^[tr]\d+$")
    dtype: str = Field(pattern=r"^[a-z0-9_]{3,20}$")
    shape: list[int] = Field(max_length=16)
    fill: dict[str, str | int] = {}


class Work(_Closed):
    """Operations of one matrix product or convolution, and the extents of its arrays."""

    flops: int
    extents: list[list[int]]


class Report(_Closed):
    """What one call of a file is about, and what came of it."""

    init: list[Nested] | None
    call: list[Nested]
    inputs: list[Tensor]
    returns: Nested
    outputs: list[Tensor]
    work: list[Work]
    weights_bytes: int
    finite: bool
    changed: list[str]
    shared: dict[str, str]
    random: bool = False
    reads_changed: bool = False
    moved: float = 1.0
    same_inputs: bool = False
    error: float | None = None
    no_float64: str = ""
    seconds: float | None = None
    tolerances: list[tuple[float, float]] = []
    submission_error: float | None = None

    @property
    def passed(self) -> dict[str, str]:
        """Arguments that are written and returned, by the result's name."""
        return {output: name for output, name in self.shared.items() if name in self.changed}


class Failed(Exception):
    """The file does not run with these sizes; the message is its own."""


class Probe:
    """A confined process with one file. It starts at the first question, and again if it died.

    Args:
        source: Text of the file.
        where: Its name, for messages.
        sandbox: What confines the process.
        reference: The class or function that is right by definition.
        inputs: An expression of the list of arguments.
        init: One of the arguments of the class; none for a function.
    """

    def __init__(
        self,
        source: str,
        where: str,
        sandbox: Sandbox,
        *,
        reference: str,
        inputs: str,
        init: str | None,
    ) -> None:
        if find_spec("torch") is None:
            raise SetupError("importing a problem needs PyTorch: pip install torch")
        self._sandbox, self.where = sandbox, where
        self._source = source
        self._file = {
            "source": source,
            "where": where,
            "reference": reference,
            "inputs": inputs,
            "init": init,
        }
        self._line: Line | None = None
        self._process: Confined | None = None
        self._rest = b""

    def numbers(self) -> dict[str, int]:
        """The file's own integers, by name.

        Raises:
            ProblemError: The file does not load.
        """
        try:
            numbers = self._ask({"load": True}).get("numbers")
        except Failed as error:
            raise ProblemError(
                f"{self.where} does not load: {error}. It may import what is installed, and read "
                "no files"
            ) from None
        if not isinstance(numbers, dict):
            raise ProblemError(f"{self.where}: it answered nothing that can be read")
        return {str(name): value for name, value in numbers.items() if type(value) is int}

    def report(self, values: Mapping[str, int], spec: Mapping[str, Any], **options: Any) -> Report:
        """What a call is about.

        Args:
            values: Values of the file's own integers.
            spec: Further names in the expressions of arguments.
            options: Those of `_probe_worker._File.report`.

        Raises:
            Failed: The file does not run with these values.
            ProblemError: It never can become a problem.
        """
        answer = self._ask({"values": {**values}, "spec": {**spec}, **options})
        try:
            return Report.model_validate(answer)
        except ValidationError as error:
            raise Failed(f"its answer cannot be read: {error.errors()[0]['msg']}") from None

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._finalizer()
        self._process = self._line = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if self._process is None or not self._process.alive:
            self.close()
            self._start()
        try:
            answer = json.loads(self._exchanged(request))
        except (ValueError, RecursionError):
            raise Failed("it answered nothing that can be read") from None
        if not isinstance(answer, dict):
            raise Failed("it answered nothing that can be read")
        if "refused" in answer:
            refused = _printable(str(answer["refused"]).encode())
            raise ProblemError(f"{self.where}: {refused}")
        if "error" in answer and "call" not in answer:
            raise Failed(_printable(str(answer["error"]).encode()))
        return answer

    def _start(self) -> None:
        packages = Packages.of(self._source)
        readable = (
            *map(Path, interpreter_trees()),
            *packages.readable,
            Path(__file__).resolve().parent,
        )
        if self._sandbox.uid is not None:
            require_readable_by_all(readable)
        line = Line(1)
        grant = Grant(
            "measure", readable, memory_bytes=_MEMORY_BYTES, most_descriptors=_DESCRIPTORS
        )
        process = line.start(
            self._sandbox,
            f"{Path(__file__).resolve().parent}/_probe_worker.main",
            [json.dumps(asdict(packages))],
            grant,
            Path("/"),
            _environment(),
        )
        self._line, self._process, self._rest = line, process, b""
        self._finalizer = weakref.finalize(self, hang_up, process, line, os.getpid())
        for expected, broken in (
            (CONFINED, "the sandbox did not come into force"),
            (READY, "PyTorch does not load in the sandbox"),
        ):
            if self._chunk(_LIMIT_S, 1) != expected:
                status = process.fate()
                self.close()
                raise SetupError(f"{broken} ({_fate(status)}): see `kernelcast doctor`")
        self._send(self._file)

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._line is not None
        text = json.dumps(message).encode() + b"\n"
        try:
            while text:
                text = text[os.write(self._line.request_fd, text) :]
        except BrokenPipeError:
            raise Failed("its process ended") from None

    def _exchanged(self, request: Mapping[str, Any]) -> bytes:
        """The line that answers a request."""
        assert self._process is not None
        self._send(request)
        until = time.perf_counter() + _LIMIT_S
        while b"\n" not in self._rest:
            chunk = self._chunk(max(0.0, until - time.perf_counter()), _MOST_REPLY)
            if not chunk or len(self._rest) > _MOST_REPLY:
                late = time.perf_counter() >= until
                status = self._process.end() if late else self._process.fate()
                self.close()
                raise Failed(f"it gave no answer within {_LIMIT_S:g} s" if late else _fate(status))
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _chunk(self, limit_s: float, most: int) -> bytes:
        """What the process has written; nothing if it ended, or gave no word within the limit."""
        assert self._line is not None
        assert self._process is not None
        return self._line.received(self._process, limit_s, most)


def _fate(status: int) -> str:
    if status >= 0:
        return f"its process ended with status {status}"
    return f"its process {death(status)}"
