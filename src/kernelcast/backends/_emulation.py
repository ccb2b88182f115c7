"""Whether a compiled GPU kernel is right, found without a GPU: its PTX runs on the CPU.

The problem's small cases run in a confined child (`_emulator_worker`), twice: once with the warps
of a block together, once with the last warp first, and with other content of memory that nothing
has written. If only the outputs are wrong, a third run tells these two apart.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from kernelcast.backends import _emulator_worker
from kernelcast.backends._arena import shared_memory
from kernelcast.backends._inputs import array_bytes
from kernelcast.backends._inspect import Residency, residency
from kernelcast.backends._launch import Launch
from kernelcast.backends._sandbox import Sandbox
from kernelcast.backends._toolchain import run_tool
from kernelcast.backends._verify import KnownAnswer
from kernelcast.emulator.counting import blocks_to_count
from kernelcast.emulator.counts import Counts
from kernelcast.emulator.machine import Extent
from kernelcast.emulator.memory import LARGE_POISON, POISON, Bytes
from kernelcast.emulator.model import Architecture, Work, estimate, work_of
from kernelcast.emulator.ptx import NotEmulated
from kernelcast.emulator.traffic import SECTOR, Traffic
from kernelcast.errors import SetupError
from kernelcast.types import Case, Device, Emulated, Evidence, Failure, FailureKind, Problem

_LATE, _DIED = "not within", "the emulator ended with status"
NOT_FINISHED = (_LATE, _DIED)
"""How the message begins if an emulation was stopped or died."""
_RUNS = (("together", POISON), ("backwards", LARGE_POISON))
_THIRD_RUN = ("together", LARGE_POISON)
_COUNTS = TypeAdapter(tuple[Counts, ...])
_COUNTED_STEPS = 400_000
_COSTLIEST_LINES = 3
SPREAD_LOG2 = 0.5
"""How far four of five estimates of kernels that the model was not fitted to are from the truth."""
_STEPS = 500_000
_SMALL_BYTES = 1 << 20
_MOST_BLOCKS = 4096
_WORKER = Path(_emulator_worker.__file__)
# By what a person would mend first.
WORDS = {
    "out_of_bounds": "it reaches outside of its memory",
    "trap": "it stops itself",
    "misaligned": "an address is no multiple of the size of the access",
    "divergent_barrier": "a barrier is not reached by all threads",
    "race": "its warps race",
    "unwritten": "it uses memory or registers that nothing has written",
    "order": "it depends on the order of its warps",
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
        if array_bytes(problem, case.dimensions) <= _SMALL_BYTES
        and math.prod(launch.grid_extent(case.dimensions)) <= _MOST_BLOCKS
    ]
    if not small:
        raise SetupError(
            f"{problem.name} has no case of at most {_SMALL_BYTES >> 20} MB and {_MOST_BLOCKS} "
            "blocks to run on the CPU: add a small one with timed = false"
        )
    return small


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
) -> tuple[Failure | None, float]:
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

    Returns:
        What is wrong, or None, and the CPU seconds that it took.

    Raises:
        NotEmulated: The code has something that is not known, or takes too long.
    """
    layout = answer.image.layout
    dimensions = answer.image.case.dimensions
    job = {
        "task": "compute",
        "entry": entry,
        "grid": launch.grid_extent(dimensions),
        "block": launch.block_extent(dimensions),
        "shared": launch.shared_bytes(dimensions),
        "dimensions": [dimensions[name] for name in problem.dimensions],
        "offsets": layout.offsets,
        "lengths": layout.lengths,
        "names": [argument.name for argument in problem.arguments],
        "steps": _STEPS,
    }

    def computed(runs: Sequence[tuple[str, int]]) -> tuple[Any, Bytes]:
        content = np.tile(answer.image.content, len(runs))
        output, memory = _in_child(sandbox, folder, ptx, {**job, "runs": runs}, content, timeout_s)
        return json.loads(output), memory.reshape(len(runs), layout.stride)

    said, slots = computed(_RUNS)
    cpu_s = float(said["cpu_s"])
    if said["faults"]:
        first = min(said["faults"], key=lambda fault: list(WORDS).index(fault["kind"]))
        sort = FailureKind.CRASH if first["kind"] in _CRASHES else FailureKind.WRONG_RESULT
        message = f"{_described(first)}, in case {answer.image.case.name}"
        return _failure(sort, first["kind"], message), cpu_s
    together, backwards = (answer.check(slot) for slot in slots)
    wrong = together or backwards
    if wrong is None:
        return None, cpu_s
    with contextlib.suppress(NotEmulated):
        again, (slot,) = computed([_THIRD_RUN])
        cpu_s += float(again["cpu_s"])
        if not np.array_equal(slot, slots[0]):
            # A load whose value depends on the poison reads what nothing has written.
            others = {note["instruction"] for note in again["unwritten"][0]}
            notes = [note for note in said["unwritten"][0] if note["instruction"] in others]
            message = ": ".join([*map(_described, notes[:1]), wrong.message])
            return _failure(wrong.kind, "unwritten", message), cpu_s
    if together is None or backwards is None:
        when = "if they run at once" if backwards is None else "if the last one runs first"
        return _failure(wrong.kind, "order", f"wrong {when}: {wrong.message}"), cpu_s
    return together, cpu_s


@dataclass(frozen=True)
class Array:
    """An array that a kernel is handed: its size, and its first bytes, which are repeated."""

    size_bytes: int
    sample: bytes


@dataclass(frozen=True)
class CountedLaunch:
    """What the blocks of a launch do: some of them, each with its share of the grid."""

    evidence: Evidence
    grid: Extent
    block: Extent
    blocks: tuple[tuple[float, Counts], ...]
    array_bytes: int
    cpu_s: float

    @property
    def exact(self) -> bool:
        """Whether no loop was sampled."""
        return all(counts.exact for _, counts in self.blocks)

    def residency(self, device: Device) -> Residency:
        """Return how many blocks a core of the device holds.

        Raises:
            NotEmulated: It holds none.
        """
        registers, shared = self.evidence.registers or 0, self.evidence.shared_bytes or 0
        held = residency(device, registers, shared, math.prod(self.block))
        if not held.blocks:
            raise NotEmulated(f"a block does not fit on a core: too much {held.limiter}")
        return held

    def work(self, device: Device) -> Work:
        """Return the work of the launch on a device of the target that it was compiled for."""
        evidence = self.evidence
        return work_of(
            self.blocks,
            grid=self.grid,
            threads=math.prod(self.block),
            resident=self.residency(device).blocks,
            shared_bytes=evidence.shared_bytes or 0,
            stack_bytes=evidence.stack_bytes or 0,
            spill_bytes=evidence.spill_bytes or 0,
            code_bytes=evidence.code_bytes or 16 * self.blocks[0][1].instructions,
            array_bytes=self.array_bytes,
        )

    def summary(self, device: Device, architecture: Architecture, case: str) -> Emulated:
        """Estimate the time, and say what makes it."""
        rates = (device.cores, device.clock_hz, device.bandwidth_bytes_s)
        estimated = estimate(self.work(device), architecture, *rates)
        counts, held = self.blocks[0][1], self.residency(device)
        lines = {
            line: cost.issued / 4.0
            + cost.waves * 128.0 / architecture.shared_bytes
            + cost.sectors / architecture.l1_sectors
            for line, cost in counts.lines.items()
        }
        total = sum(lines.values()) or 1.0
        costliest = sorted(lines, key=lambda line: -lines[line])[:_COSTLIEST_LINES]
        moved = _sum([counts.traffic(kind) for kind in ("load_global", "store_global")])
        banks = _sum([counts.traffic(kind) for kind in ("load_shared", "store_shared")])
        return Emulated(
            case=case,
            runtime_s=float(estimated.seconds),
            spread_log2=SPREAD_LOG2,
            bound_by=estimated.bound,
            shares={name: float(share) for name, share in estimated.pipes.items()},
            occupancy=held.occupancy,
            limiter=held.limiter,
            sectors_per_request=moved and moved.sectors / moved.requests,
            used_bytes=moved and min(1.0, moved.bytes / (SECTOR * moved.sectors)),
            bank_conflicts=banks and max(1.0, banks.waves / max(banks.requests, banks.bytes / 128)),
            lane_efficiency=counts.efficiency,
            lines=tuple((line, lines[line] / total) for line in costliest),
            exact=self.exact,
            cpu_s=self.cpu_s,
        )


def _sum(parts: Sequence[Traffic]) -> Traffic | None:
    """Return accesses of several kinds together; None if there are none."""
    names = [field.name for field in fields(Traffic)]
    total = Traffic(*(sum(getattr(part, name) for part in parts) for name in names))
    return total if total.requests else None


def count(
    sandbox: Sandbox,
    folder: Path,
    ptx: str,
    entry: str,
    evidence: Evidence,
    extents: tuple[Extent, Extent, int],
    arguments: Sequence[Array | int],
    variables: Mapping[str, bytes],
    timeout_s: float,
) -> CountedLaunch:
    """Count what some blocks of a launch do: one in the middle, and the last ones by x, y and z.

    Args:
        sandbox: Confines the child.
        folder: Where the child's folder is made.
        ptx: The code.
        entry: Its function.
        evidence: What compiling it showed.
        extents: Grid, block, and dynamic shared memory.
        arguments: Arrays, and the bits of numbers.
        variables: What the module's own variables hold, by name.
        timeout_s: Seconds that it may take.

    Raises:
        NotEmulated: The code has something that is not known, or takes too long.
    """
    arrays = [argument for argument in arguments if isinstance(argument, Array)]
    samples = [*(array.sample for array in arrays), *variables.values()]
    grid, block, shared_bytes = extents
    job = {
        "task": "count",
        "entry": entry,
        "grid": grid,
        "block": block,
        "shared": shared_bytes,
        "sizes": [
            argument.size_bytes if isinstance(argument, Array) else None for argument in arguments
        ],
        "numbers": [0 if isinstance(argument, Array) else argument for argument in arguments],
        "samples": list(map(len, samples)),
        "variables": list(variables),
        "steps": _COUNTED_STEPS,
    }
    content = np.frombuffer(b"".join(samples), np.uint8)
    output, _ = _in_child(sandbox, folder, ptx, job, content, timeout_s)
    answer = json.loads(output)
    shares = (share for _, share in blocks_to_count(grid))
    return CountedLaunch(
        evidence,
        grid,
        block,
        tuple(zip(shares, _COUNTS.validate_python(answer["counts"]), strict=True)),
        sum(array.size_bytes for array in arrays),
        float(answer["cpu_s"]),
    )


class UnknownInstructions(NotEmulated):
    """Some instructions are not emulated.

    Args:
        unknown: For each one its opcode with its modifiers, and what is not known about it.
    """

    def __init__(self, unknown: Sequence[tuple[str, str]]) -> None:
        super().__init__(unknown[0][1])
        self.unknown = tuple(unknown)


def decode(sandbox: Sandbox, folder: Path, ptx: str, timeout_s: float) -> int:
    """Make every instruction of all entries ready to run, without running them.

    Args:
        sandbox: Confines the child.
        folder: Where the child's folder is made.
        ptx: The code.
        timeout_s: Seconds that it may take.

    Returns:
        The number of entries.

    Raises:
        UnknownInstructions: Some instructions are not emulated.
        NotEmulated: The text has something else that is not known, or takes too long.
    """
    nothing = np.zeros(0, np.uint8)
    output, _ = _in_child(sandbox, folder, ptx, {"task": "decode"}, nothing, timeout_s)
    answer = json.loads(output)
    unknown = [(str(name)[:80], str(message)[:200]) for name, message in answer["unknown"]]
    if unknown:
        raise UnknownInstructions(unknown)
    return int(answer["entries"])


def _in_child(
    sandbox: Sandbox,
    folder: Path,
    ptx: str,
    job: Mapping[str, Any],
    content: Bytes,
    timeout_s: float,
) -> tuple[str, Bytes]:
    """Return what the child said, and what it left in the memory."""
    paths = sorted({str(package_folder(name)) for name in ("numpy", "kernelcast")})
    memory_fd, memory = shared_memory(max(content.nbytes, 1))
    work = Path(tempfile.mkdtemp(dir=folder))
    try:
        memory[: content.nbytes] = content
        (work / "kernel.ptx").write_text(ptx, encoding="utf-8")
        (work / "job.json").write_text(json.dumps({**job, "memory_fd": memory_fd, "paths": paths}))
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
        raise NotEmulated(f"{_LATE} {timeout_s:g} s")
    if run.status:
        raise NotEmulated(f"{_DIED} {run.status}: {run.output[-400:]}")
    return run.output, memory


def _described(fault: Mapping[str, Any]) -> str:
    line = f"line {fault['line']}: " if fault["line"] else ""
    return f"{line}{fault['message']} ({fault['instruction']})"


def _failure(sort: FailureKind, kind: str, message: str) -> Failure:
    return Failure(kind=sort, message=f"{WORDS[kind]}: {message}")
