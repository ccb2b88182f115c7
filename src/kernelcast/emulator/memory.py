"""The memory of an emulated kernel, and the faults that its accesses show.

Arrays lie in one arena with guarded gaps between them. Shared memory is poisoned before a block
begins, and a shadow notes which warps touched each word since the last barrier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Notes = npt.NDArray[np.int32]
FaultKind = Literal["out_of_bounds", "misaligned", "race", "divergent_barrier", "trap", "unwritten"]

POISON = 0xFF  # a NaN in every floating-point type, and -1 in the integers
LARGE_POISON = 0x7F  # a large number in most types: a maximum hides a NaN, and shows this
SHARED_WINDOW = 0x7F00_0000_0000
LOCAL_WINDOW = 0x7E00_0000_0000
_FIRST = 1 << 16
_GUARD = 1 << 14
_FAR = 1 << 33  # beyond what is held in full
_WORD = 4
_NONE, _SEVERAL = -1, -2  # no warp, several warps


@dataclass(frozen=True)
class Fault:
    """What is wrong with an access, the instruction that makes it, and its line, or 0."""

    kind: FaultKind
    message: str
    instruction: str
    line: int


class Arena:
    """Global memory: the arrays of a call, one after the other, with gaps that may not be touched.

    Args:
        arrays: What the arrays hold at first.
        names: What they are called.
    """

    def __init__(self, arrays: Sequence[Bytes], names: Sequence[str] = ()) -> None:
        self._names = names
        self.addresses: list[int] = []
        """Address of each array."""
        end = _FIRST
        for array in arrays:
            self.addresses.append(end)
            end = -(-(end + array.nbytes + _GUARD) // 256) * 256
        self.content = np.full(end, POISON, np.uint8)
        self.valid = np.zeros(end, np.bool_)
        self._sizes = [array.nbytes for array in arrays]
        for address, array in zip(self.addresses, arrays, strict=True):
            self.content[address : address + array.nbytes] = array
            self.valid[address : address + array.nbytes] = True

    def array(self, index: int) -> Bytes:
        """Return the present content of an array."""
        start = self.addresses[index]
        return self.content[start : start + self._sizes[index]]

    def add(self, content: Bytes) -> int:
        """Return the address of a further array, such as a variable of the module."""
        start = -(-(len(self.content) + _GUARD) // 256) * 256
        self.addresses.append(start)
        self._sizes.append(content.nbytes)
        grown = start + content.nbytes + _GUARD - len(self.content)
        grown += -(start + content.nbytes + _GUARD) % 256
        self.content = np.concatenate([self.content, np.full(grown, POISON, np.uint8)])
        self.valid = np.concatenate([self.valid, np.zeros(grown, np.bool_)])
        self.content[start : start + content.nbytes] = content
        self.valid[start : start + content.nbytes] = True
        return start

    def locate(self, addresses: Ints, size: int) -> tuple[Bytes, Ints, Mask]:
        """Return the memory, where each access of some bytes is in it, and which may be made."""
        inside = (addresses >= 0) & (addresses + size <= len(self.content))
        first = np.where(inside, addresses, 0)
        inside &= self.valid[first] & self.valid[np.where(inside, addresses + size - 1, 0)]
        return self.content, addresses, inside

    def describe(self, address: int) -> str:
        """Say where an address is, by the nearest array."""
        distances = [
            max(start - address, address - (start + size) + 1, 0)
            for start, size in zip(self.addresses, self._sizes, strict=True)
        ]
        if not distances:
            return f"address {address:#x}"
        index = int(np.argmin(distances))
        offset, size = address - self.addresses[index], self._sizes[index]
        name = self._names[index] if index < len(self._names) else f"array {index}"
        return f"byte {offset} of {name}, which has {size}"


class SampledArena(Arena):
    """Global memory of arrays that are too large to be held: each repeats a sample of itself.

    Args:
        sizes: Bytes of each array.
        samples: The first bytes of each array, a multiple of 16; the others are like them.
    """

    def __init__(self, sizes: Sequence[int], samples: Sequence[Bytes]) -> None:
        super().__init__(samples)
        self._held = len(self.content)
        self._starts = list(self.addresses)
        self._lengths = [sample.nbytes for sample in samples]
        self._far = list(self.addresses)
        end = _FAR
        for index, size in enumerate(sizes):
            self._far[index] = self.addresses[index] = end
            self._sizes[index] = size
            end = -(-(end + size + _GUARD) // 256) * 256

    def locate(self, addresses: Ints, size: int) -> tuple[Bytes, Ints, Mask]:
        """Return the samples, where each access is in them, and which may be made."""
        content, index, inside = super().locate(addresses, size)
        index, inside = index.copy(), inside & (addresses < _FAR)
        for number, start in enumerate(self._far):
            here = (addresses >= start) & (addresses + size <= start + self._sizes[number])
            offset = (addresses[here] - start) % self._lengths[number]
            index[here] = self._starts[number] + offset
            inside |= here
        return content, index, inside


class Shadow:
    """Which warps read and wrote each word of shared memory since the last barrier of its block."""

    def __init__(self, words: int) -> None:
        self._writer = np.full(words, _NONE, np.int32)
        self._reader = np.full(words, _NONE, np.int32)
        self._adder = np.full(words, _NONE, np.int32)  # by an atomic

    def clear(self, words: slice) -> None:
        """Forget the accesses to some words: their block has passed a barrier."""
        self._writer[words] = _NONE
        self._reader[words] = _NONE
        self._adder[words] = _NONE

    def read(self, words: Ints, warps: Ints) -> int | None:
        """Note reads; return a word that another warp has written, if there is one."""
        clash = _others(self._writer[words], warps) | _others(self._adder[words], warps)
        _note(self._reader, words, warps)
        return int(words[np.argmax(clash)]) if clash.any() else None

    def add(self, words: Ints, warps: Ints) -> int | None:
        """Note atomics; return a word that another warp has used otherwise, if there is one."""
        clash = _others(self._writer[words], warps) | _others(self._reader[words], warps)
        _note(self._adder, words, warps)
        return int(words[np.argmax(clash)]) if clash.any() else None

    def write(self, words: Ints, warps: Ints, changed: Mask, lost: Mask) -> int | None:
        """Note writes; return a word on which two warps do not agree, if there is one.

        Args:
            words: The words that are written.
            warps: The warps that write them.
            changed: Which of the writes change what was there.
            lost: Which of them another write of the same instruction has replaced.
        """
        noted = (self._writer, self._reader, self._adder)
        clash = np.any([_others(before[words], warps) for before in noted], axis=0) & changed
        self._writer[words] = warps
        clash |= lost & (self._writer[words] != warps)
        return int(words[np.argmax(clash)]) if clash.any() else None


def _others(noted: Notes, warps: Ints) -> Mask:
    """Return where another warp than this one is noted."""
    others: Mask = (noted != _NONE) & (noted != warps)
    return others


def _note(noted: Notes, words: Ints, warps: Ints) -> None:
    """Note warps beside those that are noted."""
    before = noted[words]
    noted[words] = np.where((before == _NONE) | (before == warps), warps, _SEVERAL)
    # Of two warps in this same access only one was noted.
    noted[words] = np.where(noted[words] == warps, warps, _SEVERAL)


Copy = tuple[Ints, Bytes, Ints, Any]  # addresses, data, lanes, instruction


class Copies:
    """Asynchronous copies to shared memory that have not been waited for, in their groups."""

    def __init__(self) -> None:
        self._open: list[Copy] = []
        self._groups: list[list[Copy]] = []

    def add(self, addresses: Ints, data: Bytes, lanes: Ints, instruction: Any) -> None:
        """Begin a copy."""
        self._open.append((addresses, data, lanes, instruction))

    def commit(self) -> None:
        """Make a group of the copies that have begun since the last one."""
        self._groups.append(self._open)
        self._open = []

    def take(self, left: int) -> list[Copy]:
        """Return the copies of all groups but the last ones, which may go on."""
        count = max(0, len(self._groups) - left)
        ended, self._groups = self._groups[:count], self._groups[count:]
        return [copy for group in ended for copy in group]
