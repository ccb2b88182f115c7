"""Reading the memory of another process, which tells where it is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from kernelcast.backends._peek import may_peek, peek

HOLDER = """
import ctypes, mmap, sys
pages = mmap.mmap(-1, 3 * mmap.PAGESIZE)
pages.write(bytes(range(256)) * (2 * mmap.PAGESIZE // 256))
address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
libc = ctypes.CDLL(None)
libc.mprotect(ctypes.c_void_p(address + 2 * mmap.PAGESIZE), mmap.PAGESIZE, 0)
print(address, mmap.PAGESIZE, flush=True)
sys.stdin.read()
"""


class Holder:
    """A process with two pages that can be read, and one behind them that cannot."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.address, self.page = map(int, self.process.stdout.readline().split())
        self.pid = self.process.pid


@pytest.fixture
def holder() -> Iterator[Holder]:
    holder = Holder()
    yield holder
    holder.process.communicate()


def test_many_pieces_are_read_at_once(holder: Holder) -> None:
    targets = [np.zeros(1 + index % 7, np.uint8) for index in range(1200)]
    pieces = [(holder.address + index, target) for index, target in enumerate(targets)]
    assert peek(holder.pid, pieces)
    for index, target in enumerate(targets):
        assert target.tolist() == [(index + offset) % 256 for offset in range(target.size)]
    assert peek(holder.pid, [])


@pytest.mark.parametrize("before_end", [0, 1, 100])
def test_memory_that_is_not_there_is_told(holder: Holder, before_end: int) -> None:
    start = holder.address + 2 * holder.page - before_end
    assert not peek(holder.pid, [(start, np.zeros(before_end + 1, np.uint8))])
    assert peek(holder.pid, [(start - 1, np.zeros(before_end + 1, np.uint8))])


@pytest.mark.parametrize("address", [1, -1, 2**63 - 1, -(2**63)])
def test_any_number_may_be_an_address(holder: Holder, address: int) -> None:
    assert not peek(holder.pid, [(address, np.zeros(8, np.uint8))])


def test_whether_it_is_allowed_is_told(holder: Holder) -> None:
    assert may_peek(holder.pid)
    holder.process.communicate()
    assert not may_peek(holder.pid)
