"""The parent's end of a process with one PyTorch module, and where its files and tools are.

`_torch_worker` is the other end.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernelcast.backends import _torch_worker
from kernelcast.backends._arena import Arena
from kernelcast.backends._child import Child
from kernelcast.backends._inputs import array_bytes
from kernelcast.backends._launch import driver_grant
from kernelcast.backends._packages import Packages, require_readable_by_all
from kernelcast.backends._peek import may_peek, peek
from kernelcast.backends._sandbox import LAST_BREATH_S, Grant, Sandbox
from kernelcast.backends._seal import strays
from kernelcast.backends._seccomp import Profile
from kernelcast.errors import NoDevice
from kernelcast.types import Case, Device, Failure, FailureKind, Problem

MEMORY_BYTES = 32 << 30  # of addresses: PyTorch reserves several GB
_DESCRIPTORS = 512
_IMPORT_CPU_S = 60
_WORDS = 4
_MOST_FILE_BYTES = 256 << 20
COMPILES = re.compile(r"torch\.compile|torch\._(?:dynamo|inductor)|\btriton\b")
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
        return COMPILES.search(self.source) is not None


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
        if not self._compiles:  # a sealed process makes no folders, and PyTorch asks for this one
            Path(caches(self._folder)["TORCHINDUCTOR_CACHE_DIR"]).mkdir()
        packages = Packages.of("")
        readable = (self._folder, *packages.readable)
        profile: Profile = "measure"
        writable: tuple[Path, ...] = ()
        if self._compiles:
            profile, writable = "compile", (self._folder,)
            readable = (*readable, *build_tools())
        if sandbox.uid is not None:
            require_readable_by_all(packages.readable)
        memory_bytes = MEMORY_BYTES + arena.size
        cpu_s = _IMPORT_CPU_S + int(device_cap_s + 1) * device.cores
        grant = (
            Grant(
                *(profile, readable, writable, memory_bytes, cpu_s, _DESCRIPTORS),
                interprets=True,
                asks=self._compiles,
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
            extra_bytes=addresses_bytes(arena.problem) + _torch_worker.NOTE_BYTES,
            environment=caches(self._folder)
            | {
                "OMP_NUM_THREADS": str(threads),
                "MKL_NUM_THREADS": str(threads),
                "OMP_WAIT_POLICY": "passive",
                "HOME": str(self._folder),
                "TMPDIR": str(self._folder),
                "PATH": tool_path(),
                # Memory that a call gives back is there for the next one, as in a long-lived loop.
                "MALLOC_TRIM_THRESHOLD_": str(_KEPT_BYTES),
                "MALLOC_MMAP_THRESHOLD_": str(_LARGEST_KEPT_BYTES),
            },
        )

    def give(self, program: Program, job: Mapping[str, Any]) -> None:
        """Put the module, what it built and the job where the process will look for them."""
        _copy_files(program.folder, self._folder)
        cases = by_size(self.arena.problem, self.arena.cases.values())
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

    def words(self, case: str, calls: int, base: int, *, idle: bool) -> list[int]:
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

    def refused(self, result: int) -> Failure:
        kind = {_torch_worker.UNLIKE: FailureKind.WRONG_RESULT}.get(result, FailureKind.CRASH)
        return Failure(kind=kind, message=self.note() or f"the call failed with {result}")

    def ended(self, status: int) -> Failure:
        if status == _torch_worker.LOAD_FAILED:
            return compile_error(self.note() or "the module cannot be built")
        if status == _torch_worker.NO_DEVICE and not self.on_cpu:
            raise NoDevice("PyTorch finds no CUDA device: install its build for CUDA")
        return super().ended(status)

    def note_launches(self, timeout_s: float) -> str:
        """What a call on the timed case of a rehearsal launches; nothing if it fails."""
        words = [_torch_worker.NOTE, 0, 0, 0]
        seconds = self.call(words, timeout_s, working=False)
        return "" if isinstance(seconds, Failure) else self.note()

    def note(self) -> str:
        """What the process says went wrong, or in a rehearsal what it launched."""
        words = self.memory[-_torch_worker.NOTE_BYTES :].tobytes().partition(b"\0")[0]
        return plain(words.decode(errors="replace"))

    def close(self) -> None:
        """End it, and remove its folder."""
        super().close()
        shutil.rmtree(self._folder, ignore_errors=True)


def addresses_bytes(problem: Problem) -> int:
    outputs = sum(argument.role == "output" for argument in problem.arguments)
    return outputs * _torch_worker.ADDRESSES_BYTES


def by_size(problem: Problem, cases: Iterable[Case]) -> list[Case]:
    """The smallest first: what is compiled at the first call of a shape then takes the least."""
    return sorted(cases, key=lambda case: array_bytes(problem, case.dimensions))


def compile_error(message: str) -> Failure:
    return Failure(kind=FailureKind.COMPILE_ERROR, message=message)


def _copy_files(source: Path, target: Path) -> None:
    """Copy the plain files of a folder in which a stranger's code has written, and nothing else."""
    for folder, _, names in os.walk(source):
        copy = target / Path(folder).relative_to(source)
        copy.mkdir(exist_ok=True)
        for name in names:
            if (held := content(Path(folder) / name)) is not None:
                (copy / name).write_bytes(held)


def content(path: Path) -> bytes | None:
    """The content of a plain file; None for a link, a pipe or another thing to wait for."""
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return file.read(_MOST_FILE_BYTES)
    return None


def plain(text: str) -> str:
    """Text without anything that a terminal would obey."""
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


def caches(folder: Path) -> dict[str, str]:
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


def tool_path() -> str:
    """Where compilers and ninja are looked for."""
    ninja = _ninja()
    folders = [str(ninja.parent)] if ninja else []
    return os.pathsep.join((*folders, os.environ.get("PATH", "")))


def build_tools() -> list[Path]:
    """What to show of tools that lie outside of the system's trees."""
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    headers = Path(sysconfig.get_paths()["include"])
    there = (tool for tool in (_ninja(), home, headers) if tool is not None and tool.exists())
    tools = [tool.absolute() for tool in there]
    return [tool for tool in tools if not tool.is_relative_to("/usr")]
