"""Runs the blocks of a launch of a PTX entry on the CPU, within a number of steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from kernelcast.emulator.lanes import Activation, Decoded, Group, Step, Wave
from kernelcast.emulator.memory import POISON, Arena, Fault, FaultKind, Mask
from kernelcast.emulator.ptx import SIZES, Function, Instruction, Module, NotEmulated, Variable

Order = Literal["together", "forwards", "backwards"]
Extent = tuple[int, int, int]

_MOST_LANES = 1 << 14
_FAULTS = 20
_CONTROL = frozenset({"bra", "brx", "ret", "exit", "bar", "barrier", "call", "trap"})


class TooLong(NotEmulated):
    """The kernel takes more steps than it may."""


@dataclass(frozen=True)
class Launch:
    """How an entry is called.

    Args:
        grid: Number of blocks.
        block: Number of threads of a block.
        arguments: The bits of each parameter: an address or a number.
        shared_bytes: Shared memory beside what the code declares.
    """

    grid: Extent
    block: Extent
    arguments: Sequence[int]
    shared_bytes: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return math.prod(self.block)


@dataclass(frozen=True)
class Layout:
    """Where the variables of a module and of a function lie."""

    shared: Mapping[str, int]
    shared_bytes: int
    arena: Mapping[str, int]
    """Addresses of constants and global variables."""


class Watcher:
    """Sees what a machine runs; by itself it does nothing."""

    def block(self, group: Group, current: int, mask: Mask | None) -> None:
        """Some lanes, or all, begin a block of the entry."""

    def barrier(self) -> None:
        """Lanes pass a barrier."""

    def again(self, activation: Activation, header: int, current: int, mask: Mask | None) -> None:
        """All lanes that run a block jump back to an earlier one."""


@dataclass
class Budget:
    """Instructions that may still be run."""

    left: int
    faults: dict[tuple[FaultKind, str], Fault] = field(default_factory=dict)

    def take(self, count: int) -> None:
        """Use some, and raise `TooLong` if there are none left."""
        self.left -= count
        if self.left < 0:
            raise TooLong("so many steps")


class Machine:
    """Runs all blocks of a launch, or some.

    Args:
        module: The code.
        entry: The function to run.
        launch: How it is called.
        arena: Global memory, which it reads and writes.
        order: Whether the warps of a block run together or one after the other between barriers.
        decode: Makes a step of an instruction.
        steps: Instructions that it may run; one for all lanes counts once.
        watcher: Sees what is run.
        poison: What each byte of shared memory, local memory and registers holds at first.
    """

    def __init__(
        self,
        module: Module,
        entry: Function,
        launch: Launch,
        arena: Arena,
        decode: Callable[[Instruction, Function, Machine], Step],
        *,
        order: Order = "together",
        steps: int = 2_000_000,
        watcher: Watcher | None = None,
        poison: int = POISON,
    ) -> None:
        if entry.threads and math.prod(entry.threads) != launch.threads:
            raise NotEmulated(f"a launch of {launch.threads} threads; it needs {entry.threads}")
        self.module = module
        self.launch = launch
        self.arena = arena
        self.order = order
        self.layout = _layout(module, launch, arena)
        self.parameters, self.parameter_bytes = _parameters(entry, launch)
        self.watcher = watcher
        self.poison = poison
        self.holds = True
        """Whether lanes wait at barriers."""
        self.grain = _grain(module)
        """Bytes of shared memory that are watched as one."""
        self.budget = Budget(steps)
        self._decode = decode
        self._decoded: dict[str, Decoded] = {}
        self.entry = self.decoded(entry.name)

    @property
    def faults(self) -> list[Fault]:
        """What was wrong, each once."""
        return [fault for fault in self.budget.faults.values() if fault.kind != "unwritten"]

    @property
    def unwritten(self) -> list[Fault]:
        """What read memory that holds what it held at first: no fault if nothing comes of it."""
        return [fault for fault in self.budget.faults.values() if fault.kind == "unwritten"]

    def decoded(self, name: str) -> Decoded:
        """Return a function, ready to run."""
        if name not in self._decoded:
            function = self.module.functions.get(name)
            if function is None:
                raise NotEmulated(f"a call of {name}")
            frame: dict[str, int] = {}
            end = 0
            local = [v for v in function.variables if v.space in ("local", "param")]
            own = () if function.is_entry else (*function.parameters, *function.results)
            for variable in (*own, *local):
                align = max(variable.align, 8)
                end = -(-end // align) * align
                frame[variable.name] = end
                end += variable.size or 8
            # A function may call itself: it is known before its instructions are read.
            blocks: list[tuple[tuple[Instruction, Step | None], ...]] = []
            decoded = Decoded(function, frame, -(-end // 16) * 16, ())
            self._decoded[name] = decoded
            for block in function.blocks:
                blocks.append(
                    tuple(
                        (i, None if is_control(i) else self._decode(i, function, self))
                        for i in block
                    )
                )
            self._decoded[name] = Decoded(function, frame, decoded.frame_bytes, tuple(blocks))
        return self._decoded[name]

    def run(self, blocks: Sequence[int] | None = None) -> None:
        """Run some blocks, by default all, as many at a time as there is room for."""
        numbers = range(math.prod(self.launch.grid)) if blocks is None else blocks
        at_once = max(1, _MOST_LANES // self.launch.threads)
        with np.errstate(all="ignore"):
            for start in range(0, len(numbers), at_once):
                Wave(self, numbers[start : start + at_once]).run()

    def report(self, kind: FaultKind, message: str, instruction: Instruction) -> None:
        """Note a fault; the first of each kind of an instruction is kept."""
        faults = self.budget.faults
        if sum(known == kind for known, _ in faults) < _FAULTS:
            fault = Fault(kind, message, instruction.text, instruction.line)
            faults.setdefault((kind, instruction.text), fault)


def _layout(module: Module, launch: Launch, arena: Arena) -> Layout:
    """Place shared variables from 0 on, what the launch adds last, and the others in the arena."""
    shared: dict[str, int] = {}
    placed: dict[str, int] = {}
    end = 0
    variables = [*module.variables, *(v for f in module.functions.values() for v in f.variables)]
    dynamic: list[Variable] = []
    for variable in variables:
        if variable.space == "shared" and not variable.size:
            dynamic.append(variable)
        elif variable.space == "shared":
            end = -(-end // variable.align) * variable.align
            shared[variable.name] = end
            end += variable.size
        elif variable.space in ("const", "global"):
            content = np.zeros(variable.size, np.uint8)
            content[: len(variable.data)] = np.frombuffer(variable.data, np.uint8)
            placed[variable.name] = arena.add(content)
    if dynamic:
        end = -(-end // 16) * 16
    shared |= {variable.name: end for variable in dynamic}
    return Layout(shared, end + launch.shared_bytes, placed)


def _grain(module: Module) -> int:
    """Return the bytes of the narrowest access that may be one to shared memory, 4 at most."""
    widths = [
        SIZES[instruction.types[-1]] * (2 if "v2" in instruction.modifiers else 1)
        for function in module.functions.values()
        for block in function.blocks
        for instruction in block
        if instruction.opcode in ("ld", "st")
        and instruction.types
        and not {"global", "param", "const", "local", "v4", "v8"} & {*instruction.modifiers}
    ]
    return min([4, *widths])


def is_control(instruction: Instruction) -> bool:
    """Whether an instruction is one of those that end a block."""
    return instruction.opcode in _CONTROL and "warp" not in instruction.modifiers


def _parameters(entry: Function, launch: Launch) -> tuple[dict[str, int], npt.NDArray[np.uint8]]:
    """Return where each parameter of the entry lies, and all of their bytes."""
    places: dict[str, int] = {}
    content = bytearray()
    if len(launch.arguments) != len(entry.parameters):
        raise NotEmulated(f"{len(launch.arguments)} arguments for {len(entry.parameters)}")
    for variable, bits in zip(entry.parameters, launch.arguments, strict=True):
        size = variable.size or variable.align
        content += bytes(-len(content) % variable.align)
        places[variable.name] = len(content)
        content += (bits % (1 << 8 * size)).to_bytes(size, "little")
    return places, np.frombuffer(bytes(content), np.uint8)
