"""Whether a compiled GPU kernel is right, found without a GPU: its PTX runs on the CPU.

The problem's small cases run in a confined child (`_emulator_worker`), twice: once with the warps
of a block together, once with the last warp first.
"""

from __future__ import annotations

import importlib.util
import json
import math
import mmap
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernelcast.backends import _emulator_worker
from kernelcast.backends._launch import Launch
from kernelcast.backends._sandbox import Sandbox
from kernelcast.backends._toolchain import run_tool
from kernelcast.backends._verify import KnownAnswer
from kernelcast.emulator.ptx import NotEmulated
from kernelcast.errors import SetupError
from kernelcast.types import Case, Failure, FailureKind, Problem

ORDERS = ("together", "backwards")
_STEPS = 500_000
_SMALL_BYTES = 1 << 20
_MOST_BLOCKS = 4096
_WORKER = Path(_emulator_worker.__file__)
# By what a person would mend first.
_WORDS = {
    "out_of_bounds": "it reaches outside of its memory",
    "trap": "it stops itself",
    "misaligned": "an address is no multiple of the size of the access",
    "divergent_barrier": "a barrier is not reached by all threads",
    "race": "its warps race",
}
_CRASHES = ("out_of_bounds", "misaligned", "trap")


def small_cases(problem: Problem, launch: Launch) -> list[Case]:
    """Return the cases that are small enough to run on the CPU.

    Raises:
        SetupError: There is none.
    """
    small = [
        case
        for case in problem.cases
        if _bytes(problem, case) <= _SMALL_BYTES
        and math.prod(launch.grid_extent(case.dimensions)) <= _MOST_BLOCKS
    ]
    if not small:
        raise SetupError(
            f"{problem.name} has no case of at most {_SMALL_BYTES >> 20} MB and {_MOST_BLOCKS} "
            "blocks to run on the CPU: add a small one with timed = false"
        )
    return small


def _bytes(problem: Problem, case: Case) -> int:
    return sum(
        np.dtype(argument.dtype).itemsize
        * int(np.prod(argument.extent(case.dimensions), dtype=np.int64))
        for argument in problem.arguments
    )


def package_folder(name: str) -> Path:
    """The folder that a package is imported from, found without an import."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SetupError(f"{name} is not installed: pip install {name}")
    return Path(spec.origin).resolve().parent.parent


def emulate(
    sandbox: Sandbox,
    folder: Path,
    problem: Problem,
    ptx: str,
    entry: str,
    launch: Launch,
    answer: KnownAnswer,
    timeout_s: float,
) -> Failure | None:
    """Run a kernel on the inputs of a known answer, and judge its outputs and accesses.

    Args:
        sandbox: Confines the child.
        folder: Where the child's folder is made.
        problem: The problem.
        ptx: The code.
        entry: Its function.
        launch: How that is launched.
        answer: The case.
        timeout_s: Seconds that it may take.

    Raises:
        NotEmulated: The code has something that is not known, or takes too long.
    """
    paths = sorted({str(package_folder(name)) for name in ("numpy", "kernelcast")})
    layout = answer.image.layout
    memory_fd = os.memfd_create("kernelcast")
    work = Path(tempfile.mkdtemp(dir=folder))
    try:
        os.ftruncate(memory_fd, len(ORDERS) * layout.stride)
        memory = mmap.mmap(memory_fd, len(ORDERS) * layout.stride)
        slots = np.frombuffer(memory, np.uint8).reshape(len(ORDERS), layout.stride)
        slots[:] = answer.image.content
        dimensions = answer.image.case.dimensions
        job = {
            "entry": entry,
            "grid": launch.grid_extent(dimensions),
            "block": launch.block_extent(dimensions),
            "shared": launch.shared_bytes(dimensions),
            "dimensions": [dimensions[name] for name in problem.dimensions],
            "offsets": layout.offsets,
            "lengths": layout.lengths,
            "orders": ORDERS,
            "steps": _STEPS,
            "memory_fd": memory_fd,
            "paths": paths,
        }
        (work / "kernel.ptx").write_text(ptx, encoding="utf-8")
        (work / "job.json").write_text(json.dumps(job))
        run = run_tool(
            sandbox,
            [os.path.realpath(sys.executable), "-I", "-S", "-W", "ignore", _WORKER],
            work,
            timeout_s,
            readable=(*map(Path, paths), _WORKER.parent),
            pass_fds=(memory_fd,),
        )
    finally:
        os.close(memory_fd)
        shutil.rmtree(work, ignore_errors=True)
    if run.status == _emulator_worker.NOT_EMULATED:
        raise NotEmulated(run.output.strip()[:200])
    if run.status is None:
        raise NotEmulated(f"not within {timeout_s:g} s")
    if run.status:
        raise NotEmulated(f"the emulator ended with status {run.status}: {run.output[-400:]}")
    return _judged(json.loads(run.output), slots, answer)


def _judged(faults: Sequence[Mapping[str, Any]], slots: Any, answer: KnownAnswer) -> Failure | None:
    if faults:
        first = min(faults, key=lambda fault: list(_WORDS).index(fault["kind"]))
        kind = FailureKind.CRASH if first["kind"] in _CRASHES else FailureKind.WRONG_RESULT
        line = f"line {first['line']}: " if first["line"] else ""
        words, what = _WORDS[first["kind"]], f"{first['message']} ({first['instruction']})"
        return Failure(kind=kind, message=f"{words}: {line}{what}")
    together, backwards = (answer.check(slot) for slot in slots)
    if together is None and backwards is not None:
        message = f"it is wrong if the last warp of a block runs first: {backwards.message}"
        return Failure(kind=FailureKind.WRONG_RESULT, message=message)
    return together
