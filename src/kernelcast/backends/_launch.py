"""Launching a compiled kernel on a device through its driver, CUDA's or OpenCL's.

Here are the geometry of a launch, which the source states, and the parent's end of a process that
launches on a device.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from kernelcast.backends._child import Child
from kernelcast.backends._sandbox import Grant
from kernelcast.backends._seccomp import Profile
from kernelcast.errors import ProblemError
from kernelcast.expression import MOST_CHARACTERS, evaluate, names_of
from kernelcast.types import Case, Device, Failure, FailureKind

_SMALLEST_FLUSH_BYTES = 64 << 20
_MOST_BLOCK_THREADS = 1024
_MOST_GRID = (2**31 - 1, 65_535, 65_535)
_MOST_SHARED_BYTES = 2**31 - 1
_MOST_DEFINES = 256  # that one launch is worked out from
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

    def fault(self, cases: Iterable[Case]) -> Failure | None:
        """Why this cannot be launched on one of these cases; None if it can."""
        try:
            for case in cases:
                block = self.block_extent(case.dimensions)
                grid = self.grid_extent(case.dimensions)
                if math.prod(block) > _MOST_BLOCK_THREADS:
                    return no_launch(f"{math.prod(block)} threads a block; 1024 is the most")
                if any(extent > most for extent, most in zip(grid, _MOST_GRID, strict=True)):
                    return no_launch(f"case {case.name}: the grid {grid} is too large")
                shared = self.shared_bytes(case.dimensions)
                if min(*block, *grid) < 1 or not 0 <= shared <= _MOST_SHARED_BYTES:
                    words = f"grid {grid}, block {block}, shared {shared}"
                    return no_launch(f"case {case.name}: {words}")
        except ProblemError as error:
            return no_launch(str(error))
        return None

    def _extent(self, texts: Sequence[str], dimensions: Mapping[str, int]) -> tuple[int, int, int]:
        x, y, z = [*(self._value(text, dimensions) for text in texts), 1, 1, 1][:3]
        return x, y, z

    def _value(self, text: str, dimensions: Mapping[str, int]) -> int:
        whole = text.replace("//", "/").replace("/", "//")
        value = evaluate(whole, {**dict(self.constants), **dimensions})
        if isinstance(value, str):
            raise ProblemError(f"{text!r} is text, not a number")
        return int(value)


def no_launch(why: str) -> Failure:
    """The failure of a kernel that cannot be launched."""
    return Failure(kind=FailureKind.COMPILE_ERROR, message=f"it cannot be launched: {why}")


_PRAGMA = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+kernelcast\b(.*)$", re.MULTILINE)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(.+)$", re.MULTILINE)
_CLAUSE = re.compile(r"\s*(\w+)\s*\(")
_COMMENT = re.compile(r"//.*|/\*.*?(?:\*/|$)")


def read_launch(source: str, grid: str = "grid", block: str = "block") -> Launch | None:
    """The launch in the clauses of the source's first `#pragma kernelcast`, or None.

    Its constants are the numbers that the source defines as macros and that the clauses reach. A
    line that is too long for an expression states no launch.
    """
    pragma = _PRAGMA.search(source)
    if pragma is None or len(pragma[1]) > MOST_CHARACTERS:
        return None
    stated = _COMMENT.sub("", pragma[1])
    clauses = dict(_clauses(stated))
    if grid not in clauses or block not in clauses:
        return None
    shared = clauses.get("shared", ("0",))[0]
    return Launch(clauses[grid], clauses[block], shared, tuple(_constants(source, stated).items()))


def _constants(source: str, stated: str) -> dict[str, int | float | str]:
    """The integers that a text needs of the source's macros, of which few may be needed."""
    defines = [
        (name, _COMMENT.sub("", text).strip().replace("/", "//"))
        for name, text in _DEFINE.findall(source)
        if len(text) <= MOST_CHARACTERS
    ]
    by_name: dict[str, list[str]] = {}
    for name, text in defines:
        by_name.setdefault(name, []).append(text)
    needed, unread = set[str](), names_of(stated)
    while unread and len(needed) < _MOST_DEFINES:
        needed |= unread
        texts = (text for name in unread for text in by_name.get(name, ()))
        unread = set[str]().union(*map(names_of, texts)) - needed
    constants: dict[str, int | float | str] = {}
    reached = ((name, text) for name, text in defines if name in needed)
    for name, text in islice(reached, _MOST_DEFINES):
        with suppress(ProblemError):  # no constant
            value = evaluate(text, constants)
            if isinstance(value, int):
                constants[name] = value
    return constants


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
    """A process that launches on a device. It holds no host code of a candidate.

    One run is three requests: copy in, launch, copy out. The launches are timed, and the copies
    count as taken aside.
    """

    on_cpu = False
    phases: tuple[int, int, int, int]  # numbers of: copy in, launch, copy out, idle
    launches: Mapping[str, Launch]  # by case

    def run(self, case: str, calls: int, base: int, timeout_s: float) -> float | Failure:
        """Seconds of the launches alone, a launch on each slot."""
        seconds = []
        for phase in self.phases[:3]:
            words = self.phase_words(phase, case, calls, base)
            result = self.call(words, timeout_s, working=phase == self.phases[1])
            if isinstance(result, Failure):
                return result
            seconds.append(result)
        return seconds[1]

    def words(self, case: str, calls: int, base: int, *, idle: bool) -> list[int]:
        return self.phase_words(self.phases[3 if idle else 1], case, calls, base)

    def phase_words(self, phase: int, case: str, calls: int, base: int) -> list[int]:
        """The words of one of the requests of a run."""
        launch, layout = self.launches[case], self.arena.layouts[case]
        dimensions = self.arena.cases[case].dimensions
        return [
            *(phase, calls, layout.stride, base, *layout.offsets, *self.arena.extents(case)),
            *launch.grid_extent(dimensions),
            *launch.block_extent(dimensions),
        ]
