"""How the arrays of a call lie in the memory that parent and child share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from kernelcast.types import Case, Problem

_ALIGNMENT = 512  # what OpenCL devices want of a part of a buffer: PoCL 128, NVIDIA 512
_GUARD_BYTES = 256
_PAGE = 4096
_MOST_CALLS = 256
_BATCH_BYTES = 4 << 20


@dataclass(frozen=True)
class Layout:
    """Where the arrays of one case lie from the start of a slot, and how long a slot is."""

    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    stride: int

    @classmethod
    def of(cls, problem: Problem, case: Case) -> Layout:
        """Arrays in the order of the signature, aligned, with a guard before, between, after."""
        offsets, lengths, end = [], [], 0
        for argument in problem.arguments:
            start = -(-(end + _GUARD_BYTES) // _ALIGNMENT) * _ALIGNMENT
            length = int(np.prod(argument.extent(case.dimensions), dtype=np.int64))
            length *= np.dtype(argument.dtype).itemsize
            offsets.append(start)
            lengths.append(length)
            end = start + length
        stride = -(-(end + _GUARD_BYTES) // _PAGE) * _PAGE
        return cls(tuple(offsets), tuple(lengths), stride)


@dataclass(frozen=True)
class Arena:
    """How every process of a problem lays out its memory: slots by case, one a call."""

    problem: Problem
    cases: Mapping[str, Case]
    layouts: Mapping[str, Layout]
    size: int

    @classmethod
    def of(cls, problem: Problem, hidden: Iterable[Case] = ()) -> Arena:
        """Room for two calls of any stated case, and for a batch of the small ones.

        Hidden cases that do not fit in there are left out.
        """
        layouts = {case.name: Layout.of(problem, case) for case in problem.cases}
        size = max(_slots(layout) * layout.stride for layout in layouts.values())
        fitting = [each for each in hidden if Layout.of(problem, each).stride <= size]
        layouts |= {case.name: Layout.of(problem, case) for case in fitting}
        cases = {case.name: case for case in (*problem.cases, *fitting)}
        return cls(problem, cases, layouts, size)

    def most_calls(self, case: str) -> int:
        """Calls that fit into one request, with a slot to spare so that addresses can vary."""
        return max(1, _slots(self.layouts[case]) - 1)

    def extents(self, case: str) -> list[int]:
        """The dimensions of a case in the order of the signature."""
        return [self.cases[case].dimensions[name] for name in self.problem.dimensions]


def _slots(layout: Layout) -> int:
    return min(_MOST_CALLS, max(2, _BATCH_BYTES // layout.stride))
