"""Compilers and disassemblers as child processes: find them, and run them confined.

Their input is not trusted, so they run in the sandbox with a time limit, may write only in their
folder, and their output is cut at a size.
"""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from kernelcast.backends._inspect import CODE_OPTIONS, OBJDUMP_OPTIONS, object_mix
from kernelcast.backends._sandbox import Grant, Sandbox
from kernelcast.errors import SetupError
from kernelcast.types import Failure, FailureKind

STOPPED = "the compiler was stopped after"
NO_OBJDUMP = (
    "objdump was not found, and without it the code that PoCL makes of a kernel is not inspected: "
    "apt-get install binutils"
)
_DISASSEMBLY_TIMEOUT_S = 30.0
_RUN_PROGRAM = "_confine.run"
_MEMORY_BYTES = 8 << 30
_OUTPUT_BYTES = 64 << 20
_MESSAGE_LINES = 20
_MESSAGE_BYTES = 16_384


@dataclass(frozen=True)
class ToolRun:
    """The exit status of a tool (None: it was stopped), its output, and how long it took."""

    status: int | None
    output: str
    seconds: float

    @property
    def failure(self) -> Failure | None:
        """The compile error, with the tool's own words; None for status 0."""
        if self.status == 0:
            return None
        message = "\n".join(self.output[:_MESSAGE_BYTES].splitlines()[:_MESSAGE_LINES])
        message = message or f"the compiler ended with status {self.status}"
        return Failure(kind=FailureKind.COMPILE_ERROR, message=message)


def run_tool(
    sandbox: Sandbox,
    command: Sequence[str | Path],
    folder: Path,
    timeout_s: float,
    *,
    task: str = _RUN_PROGRAM,
    readable: Sequence[Path] = (),
    pass_fds: Sequence[int] = (),
    memory_bytes: int = _MEMORY_BYTES,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> ToolRun:
    """Run a command in a folder, with output and errors in the order printed.

    The program runs by the name it is called by: clang++ is a link to clang. With `task`, the
    command is the arguments of a child-side function that compiles by itself.
    """
    if task == _RUN_PROGRAM:
        readable = (*readable, program_tree(Path(command[0])))
    cpu_s = math.ceil(2 * timeout_s)
    grant = Grant("compile", tuple(readable), (folder,), memory_bytes, cpu_s)
    private = {"TMPDIR": str(folder), "HOME": str(folder), "LC_ALL": "C", "OMP_NUM_THREADS": "1"}
    sandbox.own(folder)
    started = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = sandbox.start(
            task,
            list(map(str, command)),
            grant,
            folder,
            environment={**private, **environment},
            pass_fds=pass_fds,
            output=output,
        )
        in_time = process.ended_within(timeout_s, sealed=False)
        status = process.end()
        seconds = time.perf_counter() - started
        output.seek(0)
        text = output.read(_OUTPUT_BYTES).decode(errors="replace")
    if not in_time:
        return ToolRun(None, f"{STOPPED} {timeout_s:g} s\n{text}", seconds)
    return ToolRun(status, text, seconds)


def program_tree(program: Path) -> Path:
    """What to show of a program: its prefix, but never a home."""
    program = program.resolve()
    prefix = program.parent.parent
    whole = program.parent.name == "bin" and not Path.home().is_relative_to(prefix)
    return prefix if whole else program.parent


def native_mix(sandbox: Sandbox, library: Path, folder: Path) -> tuple[int, dict[str, int]]:
    """Code bytes and instruction mix of a native library; (0, {}) without objdump."""
    objdump = shutil.which("objdump")
    if objdump is None:
        return 0, {}
    command = (objdump, *OBJDUMP_OPTIONS, library)
    listing = run_tool(sandbox, command, folder, _DISASSEMBLY_TIMEOUT_S)
    return (0, {}) if listing.failure else object_mix(listing.output)


def whole_listing(sandbox: Sandbox, library: Path, folder: Path) -> str | Failure:
    """All code of a native library as objdump lists it, or why there is no such list.

    Raises:
        SetupError: There is no objdump.
    """
    objdump = shutil.which("objdump")
    if objdump is None:
        raise SetupError(NO_OBJDUMP)
    run = run_tool(sandbox, (objdump, *CODE_OPTIONS, library), folder, _DISASSEMBLY_TIMEOUT_S)
    if run.status == 0 and len(run.output) < _OUTPUT_BYTES:
        return run.output
    message = "its code cannot be listed: " + (
        run.failure.message if run.failure else f"the list has more than {_OUTPUT_BYTES >> 20} MB"
    )
    return Failure(kind=FailureKind.COMPILE_ERROR, message=message)


def find_cuda_tool(name: str) -> Path | None:
    """A tool of the CUDA toolkit: on the path, beside nvcc, or in a wheel that contains it."""
    if on_path := shutil.which(name):
        return Path(on_path)
    folders = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin"]
    if toolkit := importlib.util.find_spec("nvidia"):
        for root in map(Path, toolkit.submodule_search_locations or ()):
            folders += sorted(root.glob("cu*/bin"), reverse=True)
            folders += sorted(root.glob("cuda_*/bin"))
    if triton := triton_tools():
        folders.append(triton)
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def triton_tools() -> Path | None:
    """The folder of NVIDIA tools in Triton's wheel, found without an import of Triton."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "backends" / "nvidia" / "bin"
