"""Layout of the arrays of a call in the memory that parent and child share."""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelcast.dtypes import dtype_of
from kernelcast.types import Case, Problem

_ALIGNMENT = 512  # of parts of a buffer in OpenCL: PoCL needs 128, NVIDIA 512
_GUARD_BYTES = 256
_PAGE = 4096
_MOST_CALLS = 256
_BATCH_BYTES = 4 << 20


@dataclass(frozen=True)
class Layout:
    """Offsets and lengths in bytes of the arrays of one case in a slot, and a slot's length."""

    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    stride: int

    @classmethod
    def of(cls, problem: Problem, case: Case) -> Layout:
        """Arrays in the order of the signature, aligned, with guards before, between and after."""
        offsets, lengths, end = [], [], 0
        for argument in problem.arguments:
            start = -(-(end + _GUARD_BYTES) // _ALIGNMENT) * _ALIGNMENT
            elements = math.prod(argument.extent(case.dimensions))
            length = elements * dtype_of(argument.dtype).bytes
            offsets.append(start)
            lengths.append(length)
            end = start + length
        stride = -(-(end + _GUARD_BYTES) // _PAGE) * _PAGE
        return cls(tuple(offsets), tuple(lengths), stride)


@dataclass(frozen=True)
class Arena:
    """The memory of every process of a problem: one slot a call."""

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
        cases = {case.name: case for case in problem.cases}
        for case in hidden:
            layout = Layout.of(problem, case)
            if layout.stride <= size:
                cases[case.name], layouts[case.name] = case, layout
        return cls(problem, cases, layouts, size)

    def most_calls(self, case: str) -> int:
        """Calls that fit into one request, with a slot to spare so that addresses can vary."""
        return max(1, _slots(self.layouts[case]) - 1)

    def extents(self, case: str) -> list[int]:
        """The dimensions of a case in the order of the signature."""
        return [self.cases[case].dimensions[name] for name in self.problem.dimensions]


def _slots(layout: Layout) -> int:
    return min(_MOST_CALLS, max(2, _BATCH_BYTES // layout.stride))


def shared_memory(size: int) -> tuple[int, NDArray[np.uint8]]:
    """Memory to share with a child: the descriptor to pass on and close, and this side's view."""
    fd = os.memfd_create("kernelcast", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        # A child that shrank the file would kill the parent with SIGBUS.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        return fd, np.frombuffer(mmap.mmap(fd, size), dtype=np.uint8)
    except BaseException:
        os.close(fd)
        raise
