"""Launching a compiled kernel on a device through its driver, CUDA's or OpenCL's.

Here are the geometry of a launch, which the source states, and the parent's end of a process that
launches. One run is several requests; the parent's clock counts the `run` request alone, without
the copies to and from the device.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelcast.backends._child import Child
from kernelcast.backends._sandbox import Grant
from kernelcast.backends._seccomp import Profile
from kernelcast.errors import ProblemError
from kernelcast.expression import evaluate
from kernelcast.types import Device, Failure, FailureKind, Problem

_SMALLEST_FLUSH_BYTES = 64 << 20
_MOST_BLOCK_THREADS = 1024
_MOST_GRID = (2**31 - 1, 65_535, 65_535)
# A GPU's driver maps the device's memory and more into its address space.
_ADDRESSABLE_BYTES = 1 << 46
_DESCRIPTORS = 512


@dataclass(frozen=True)
class Launch:
    """How many blocks of how many threads: expressions over dimensions and constants.

    A grid has up to three extents; `/` divides and rounds down, as in C.
    """

    grid: tuple[str, ...]
    block: tuple[str, ...]
    shared: str = "0"
    constants: tuple[tuple[str, int | float | str], ...] = ()

    def block_extent(self, dimensions: Mapping[str, int]) -> tuple[int, int, int]:
        """Threads of a block in x, y and z."""
        return self._extent(self.block, dimensions)

    def grid_extent(self, dimensions: Mapping[str, int]) -> tuple[int, int, int]:
        """Blocks in x, y and z."""
        return self._extent(self.grid, dimensions)

    def shared_bytes(self, dimensions: Mapping[str, int]) -> int:
        """Dynamic shared memory of a block."""
        return self._value(self.shared, dimensions)

    def fault(self, problem: Problem) -> Failure | None:
        """Why this cannot be launched on the problem's cases; None if it can."""
        try:
            for case in problem.cases:
                block = self.block_extent(case.dimensions)
                grid = self.grid_extent(case.dimensions)
                if math.prod(block) > _MOST_BLOCK_THREADS:
                    return no_launch(f"{math.prod(block)} threads a block; 1024 is the most")
                if any(extent > most for extent, most in zip(grid, _MOST_GRID, strict=True)):
                    return no_launch(f"case {case.name}: the grid {grid} is too large")
                if min(*block, *grid) < 1 or self.shared_bytes(case.dimensions) < 0:
                    return no_launch(f"case {case.name}: grid {grid}, block {block}")
        except (ProblemError, ArithmeticError, TypeError, ValueError) as error:
            return no_launch(str(error))
        return None

    def _extent(self, texts: Sequence[str], dimensions: Mapping[str, int]) -> tuple[int, int, int]:
        x, y, z = [*(self._value(text, dimensions) for text in texts), 1, 1, 1][:3]
        return x, y, z

    def _value(self, text: str, dimensions: Mapping[str, int]) -> int:
        whole = text.replace("//", "/").replace("/", "//")
        return int(evaluate(whole, {**dict(self.constants), **dimensions}))


def no_launch(why: str) -> Failure:
    """The failure of a kernel that cannot be launched."""
    return Failure(kind=FailureKind.COMPILE_ERROR, message=f"it cannot be launched: {why}")


_PRAGMA = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+kernelcast\b(.*)$", re.MULTILINE)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(.+)$", re.MULTILINE)
_CLAUSE = re.compile(r"\s*(\w+)\s*\(")
_COMMENT = re.compile(r"//.*|/\*.*?\*/")


def read_launch(source: str, grid: str = "grid", block: str = "block") -> Launch | None:
    """The launch in the clauses of the source's first `#pragma kernelcast`, or None.

    Its constants are the numbers that the source defines as macros.
    """
    pragma = _PRAGMA.search(source)
    clauses = dict(_clauses(_COMMENT.sub("", pragma[1]))) if pragma else {}
    if grid not in clauses or block not in clauses:
        return None
    constants: dict[str, int | float | str] = {}
    for name, text in _DEFINE.findall(source):
        try:
            value = evaluate(_COMMENT.sub("", text).strip().replace("/", "//"), constants)
        except (ProblemError, ArithmeticError, TypeError):
            continue
        if isinstance(value, int):
            constants[name] = value
    shared = clauses.get("shared", ("0",))[0]
    return Launch(clauses[grid], clauses[block], shared, tuple(constants.items()))


def _clauses(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each `name(extent, ...)` with its extents."""
    while clause := _CLAUSE.match(text):
        depth, parts, end = 1, [""], clause.end()
        while depth and end < len(text):
            character = text[end]
            depth += {"(": 1, ")": -1}.get(character, 0)
            if character == "," and depth == 1:
                parts.append("")
            elif depth:
                parts[-1] += character
            end += 1
        yield clause[1], tuple(part.strip() for part in parts)
        text = text[end:]


# ------------------------------------------------------------------------------------ the process


def driver_grant(profile: Profile, *readable: Path, writable: tuple[Path, ...] = ()) -> Grant:
    """What a process may use that loads the driver of a GPU."""
    return Grant(profile, readable, writable, _ADDRESSABLE_BYTES, most_descriptors=_DESCRIPTORS)


def device_flush_bytes(device: Device) -> int:
    """How much to write on a device so that no input is left in its cache."""
    return max(2 * device.cache_bytes, _SMALLEST_FLUSH_BYTES)


class LaunchingChild(Child):
    """A process that launches on a device, where one run is several requests, of one phase each."""

    _launches: Mapping[str, Launch]  # by case

    def _ask(
        self, phases: Sequence[int], timed: int, case: str, calls: int, base: int, timeout_s: float
    ) -> float | Failure:
        """Make requests of these phases, and return the seconds of one of them."""
        seconds = {}
        for phase in phases:
            result = self.call(self._words(phase, case, calls, base), timeout_s)
            if isinstance(result, Failure):
                return result
            seconds[phase] = result
        return seconds[timed]

    def _words(self, phase: int, case: str, calls: int, base: int) -> list[int]:
        launch, layout = self._launches[case], self.arena.layouts[case]
        dimensions = self.arena.cases[case].dimensions
        return [
            *(phase, calls, layout.stride, base, *layout.offsets, *self.arena.extents(case)),
            *launch.grid_extent(dimensions),
            *launch.block_extent(dimensions),
        ]
