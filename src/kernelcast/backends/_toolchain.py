"""Compilers and disassemblers of GPU code as child processes: find them, run them confined.

What they read was written by somebody who is not trusted, so they run in the sandbox with a time
limit, may write only in their folder, and what they print is cut at a size.
"""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelcast.backends._sandbox import Grant, Sandbox, program_tree
from kernelcast.types import Failure, FailureKind

DISASSEMBLY_TIMEOUT_S = 30.0
_MEMORY_BYTES = 8 << 30
_OUTPUT_BYTES = 4 << 20
_MESSAGE_LINES = 20
_MESSAGE_BYTES = 16_384


@dataclass(frozen=True)
class ToolRun:
    """How a tool ended (None: it was stopped), what it printed, and how long it took."""

    status: int | None
    output: str
    seconds: float

    @property
    def failure(self) -> Failure | None:
        """The compile error that a tool's bad end is, in the tool's own words."""
        if self.status == 0:
            return None
        how = f"ended with status {self.status}" if self.status else "did not end in time"
        lines = self.output[:_MESSAGE_BYTES].splitlines()[:_MESSAGE_LINES]
        said = "\n".join(line for line in lines if line.strip())
        message = f"the compiler {how}" + (f"\n{said}" if said else "")
        return Failure(kind=FailureKind.COMPILE_ERROR, message=message)


def run_tool(
    sandbox: Sandbox,
    command: Sequence[str | Path],
    folder: Path,
    timeout_s: float,
    *,
    readable: Sequence[Path] = (),
    pass_fds: Sequence[int] = (),
    **environment: str,
) -> ToolRun:
    """Run a command in a folder, output and errors together in the order printed."""
    program = Path(os.path.realpath(command[0]))
    return run_task(
        sandbox,
        "_confine.run",
        [str(program), *map(str, command[1:])],
        folder,
        timeout_s,
        readable=(*readable, program_tree(program)),
        pass_fds=pass_fds,
        **environment,
    )


def run_task(
    sandbox: Sandbox,
    task: str,
    arguments: Sequence[str],
    folder: Path,
    timeout_s: float,
    *,
    readable: Sequence[Path] = (),
    pass_fds: Sequence[int] = (),
    **environment: str,
) -> ToolRun:
    """The same for a function of a child-side module that compiles by itself."""
    grant = Grant(
        "compile",
        readable=tuple(readable),
        writable=(folder,),
        memory_bytes=_MEMORY_BYTES,
        cpu_s=math.ceil(2 * timeout_s),
    )
    sandbox.own(folder)
    started = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = sandbox.start(
            task,
            arguments,
            grant,
            folder,
            pass_fds=pass_fds,
            output=output,
            TMPDIR=str(folder),
            HOME=str(folder),
            LC_ALL="C",
            OMP_NUM_THREADS="1",
            **environment,  # type: ignore[arg-type]  # no variable is called `source`
        )
        in_time = process.ended_within(timeout_s)
        status = process.end()
        seconds = time.perf_counter() - started
        output.seek(0)
        text = output.read(_OUTPUT_BYTES).decode(errors="replace")
    return ToolRun(status if in_time else None, text, seconds)


def find_cuda_tool(name: str) -> Path | None:
    """A tool of the CUDA toolkit: on the path, beside nvcc, or in the wheel that brings it."""
    if on_path := shutil.which(name):
        return Path(on_path)
    folders = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin"]
    if toolkit := importlib.util.find_spec("nvidia"):
        for root in map(Path, toolkit.submodule_search_locations or ()):
            folders += sorted(root.glob("cu*/bin"), reverse=True)
            folders += sorted(root.glob("cuda_*/bin"))
    if triton := triton_tools():
        folders.append(triton)
    return next((each / name for each in folders if (each / name).is_file()), None)


def triton_tools() -> Path | None:
    """The folder of NVIDIA tools that Triton's wheel brings along, found without importing it."""
    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "backends" / "nvidia" / "bin"
