"""Which instructions wait for which, and what leads to addresses and branches."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kernelcast.emulator.kinds import ACCESSES, Kind, kind_of
from kernelcast.emulator.ptx import Function, Instruction

_CYCLES: Mapping[Kind, float] = {
    "free": 0.0,
    "integer": 4.5,
    "multiply": 4.5,
    "wide": 8.0,
    "divide": 60.0,
    "divide_integer": 120.0,
    "float": 4.0,
    "special": 24.0,
    "double": 8.0,
    "convert": 8.0,
    "convert_double": 10.0,
    "matrix": 18.0,
    "shuffle": 24.0,
    "control": 6.0,
    "barrier": 0.0,
    "load_constant": 8.0,
}
_SHARED_LOAD, _GLOBAL_LOAD = 24.0, 250.0  # cycles, only to find the longest chain


@dataclass(frozen=True)
class Chain:
    """The longest chain of instructions that wait for each other.

    Cycles of arithmetic, and the loads whose time depends on the device.
    """

    cycles: float = 0.0
    shared_loads: float = 0.0
    global_loads: float = 0.0


_NAME = re.compile(r"[%A-Za-z_$][\w$.@]*")


class Flow:
    """Which registers each instruction of a function reads and writes."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._known: dict[int, tuple[frozenset[str], frozenset[str]]] = {}

    def of(self, instruction: Instruction) -> tuple[frozenset[str], frozenset[str]]:
        """Return the registers that it writes, and those that it reads."""
        if id(instruction) not in self._known:
            registers = self._function.registers
            found = [
                frozenset(name for name in _NAME.findall(text) if name in registers)
                for text in instruction.operands
            ]
            stores = instruction.opcode in ("st", "red", "bra", "bar", "stmatrix", "cp", "call")
            stores = stores or "store" in instruction.modifiers
            writes = frozenset[str]() if stores or not found else found[0]
            reads = frozenset[str]().union(*(found if stores else found[1:]))
            if instruction.guard:
                reads |= {instruction.guard}
            self._known[id(instruction)] = (writes, reads)
        return self._known[id(instruction)]

    @cached_property
    def needed(self) -> frozenset[str]:
        """The registers that lead to an address or a branch, or to what is loaded for one."""
        every = [i for block in self._function.blocks for i in block]
        if any(i.opcode == "call" for i in every):
            return frozenset(self._function.registers)
        wanted: set[str] = set()
        for instruction in every:
            if instruction.guard:
                wanted.add(instruction.guard)
            if instruction.opcode in ACCESSES:
                for text in instruction.operands:
                    if text.startswith("["):
                        wanted |= {n for n in _NAME.findall(text) if n in self._function.registers}
            if instruction.opcode == "cp" or (
                instruction.opcode == "wmma" and len(instruction.operands) > 2
            ):
                wanted |= self.of(instruction)[1]
        while True:
            before = len(wanted)
            loaded: set[Kind] = set()
            for instruction in every:
                writes, reads = self.of(instruction)
                if writes & wanted:
                    wanted |= reads
                    if instruction.opcode in ACCESSES:
                        loaded.add(kind_of(instruction))
            for instruction in every:
                stored = kind_of(instruction) if instruction.opcode == "st" else None
                if (stored == "store_shared" and "load_shared" in loaded) or (
                    stored == "store_local" and "load_local" in loaded
                ):
                    wanted |= self.of(instruction)[1]
            if len(wanted) == before:
                return frozenset(wanted)

    def is_needed(self, instruction: Instruction) -> bool:
        """Whether an instruction must be computed."""
        writes, reads = self.of(instruction)
        if instruction.opcode == "st":
            return reads <= self.needed and kind_of(instruction) in ("store_shared", "store_local")
        return bool(writes & self.needed)


def chain_of(block: Sequence[Instruction], flow: Flow) -> Chain:
    """Return the longest chain of a piece of code without branches."""
    ready: dict[str, tuple[float, Chain]] = {}
    longest = (0.0, Chain())
    for instruction in block:
        writes, reads = flow.of(instruction)
        start = max(
            (ready[name] for name in reads if name in ready),
            key=lambda c: c[0],
            default=(0.0, Chain()),
        )
        kind, (time, chain) = kind_of(instruction), start
        if kind == "load_shared":
            end = (
                time + _SHARED_LOAD,
                Chain(chain.cycles, chain.shared_loads + 1, chain.global_loads),
            )
        elif kind in ("load_global", "load_local"):
            end = (
                time + _GLOBAL_LOAD,
                Chain(chain.cycles, chain.shared_loads, chain.global_loads + 1),
            )
        else:
            cycles = _CYCLES.get(kind, 0.0)
            end = (
                time + cycles,
                Chain(chain.cycles + cycles, chain.shared_loads, chain.global_loads),
            )
        for name in writes:
            ready[name] = end
        longest = max(longest, end, key=lambda c: c[0])
    return longest[1]
