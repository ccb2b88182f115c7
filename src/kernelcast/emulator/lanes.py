"""The threads of some blocks as lanes of arrays: NumPy computes an instruction for all at once.

Lanes that took different branches run one path after the other, the one that is earlier in the text
first, until they meet again. A register holds unsigned integers of its width, or one such number if
all lanes have the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernelcast.emulator.memory import Copies, Ints, Mask, Shadow
from kernelcast.emulator.ptx import SIZES, Function, Instruction, Module, NotEmulated, Variable

if TYPE_CHECKING:
    from kernelcast.emulator.machine import Launch, Machine

Value = npt.NDArray[Any]
Step = Callable[["Group", Mask | None], None]
"""Does an instruction for some lanes of a group, or for all."""

WARP = 32
_MOST_DEPTH = 16  # of calls
_BARRIER = frozenset({"sync", "aligned", "cta"})


def no_step(_group: Group, _mask: Mask | None) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Decoded:
    """A function whose instructions are ready to run."""

    function: Function
    frame: Mapping[str, int]
    """Offsets of local variables and of the parameters of calls."""
    frame_bytes: int
    blocks: tuple[tuple[tuple[Instruction, Step | None], ...], ...]


def raw_type(size: int) -> str:
    """Return the type of an array that holds registers of so many bytes."""
    return f"u{size}"


class Wave:
    """Some blocks of a launch that run at once."""

    def __init__(self, machine: Machine, blocks: Sequence[int]) -> None:
        self.machine = machine
        self.blocks = np.asarray(blocks, np.int64)
        self.shared_bytes = -(-max(machine.layout.shared_bytes, 1) // 16) * 16
        self.shared = np.full(len(blocks) * self.shared_bytes, machine.poison, np.uint8)
        self.shadow = Shadow(len(self.shared) // machine.grain)
        threads = machine.launch.threads
        lanes = np.arange(threads * len(blocks))
        warps = range(-(-threads // WARP))
        parts = [lanes]
        if machine.order != "together":
            ordered = warps if machine.order == "forwards" else reversed(warps)
            parts = [lanes[lanes % threads // WARP == warp] for warp in ordered]
        self.groups = [Group(self, part) for part in parts]

    def run(self) -> None:
        """Run until all lanes have ended."""
        while True:
            for group in self.groups:
                group.top.run()
            if not any(group.barrier.any() for group in self.groups):
                return
            self._pass_barriers()

    def _pass_barriers(self) -> None:
        """Let the lanes of each barrier go on for which all have come."""
        groups, machine = self.groups, self.machine
        barrier, expected, at, reached = (
            np.concatenate([getattr(group, name) for group in groups])
            for name in ("barrier", "expected", "at", "reached")
        )
        block = np.concatenate([group.block for group in groups])
        live = np.concatenate([group.live() for group in groups])
        passing = np.zeros(len(block), np.bool_)
        count = len(self.blocks)
        for number in np.unique(barrier[barrier > 0]):
            waits = barrier == number
            here = np.bincount(block[waits], minlength=count)
            stated = np.zeros(count, np.int64)
            np.maximum.at(stated, block[waits], expected[waits])
            needed = np.where(stated > 0, stated, np.bincount(block[live], minlength=count))
            open_blocks = (here > 0) & (here >= needed)
            passing |= waits & open_blocks[block]
            first = np.full(count, len(machine.entry.blocks))
            np.minimum.at(first, block[waits], at[waits])
            last = np.zeros(count, np.int64)
            np.maximum.at(last, block[waits], at[waits])
            # Some threads wait at another barrier, or have gone past this one.
            beyond = (reached > first[block]) & (barrier != number) & (here > 0)[block]
            if (stated == 0).all() and ((first < last)[block][waits].any() or beyond.any()):
                self._report_divergence(int(first[block[waits][0]]))
        if not passing.any():
            self._report_divergence(int(at[barrier > 0][0]))
            passing = barrier > 0
        if machine.watcher is not None:
            machine.watcher.barrier()
        for index in np.unique(block[passing]):
            words = self.shared_bytes // machine.grain
            self.shadow.clear(slice(index * words, (index + 1) * words))
        start = 0
        for group in groups:
            group.go_on(passing[start : start + group.count])
            start += group.count

    def _report_divergence(self, at: int) -> None:
        instruction = self.machine.entry.blocks[at][-1][0]
        message = "other threads of the block have gone past it, or wait at another one"
        self.machine.report("divergent_barrier", message, instruction)


class Group:
    """Lanes that run together until each waits at a barrier or has ended."""

    def __init__(self, wave: Wave, lanes: Ints) -> None:
        machine = wave.machine
        launch = machine.launch
        threads, (width, height, _) = launch.threads, launch.block
        self.wave = wave
        self.machine = machine
        self.count = len(lanes)
        self.block = lanes // threads
        """Number of the block in its wave."""
        thread = lanes % threads
        self.warp = self.block * -(-threads // WARP) + thread // WARP
        """Number of the warp in its wave."""
        self.lane = (thread % WARP).astype(np.int64)
        self.row = _rows(self.warp)
        """For each lane, the position of the first lane of its warp in this group."""
        self.special = _special(thread, wave.blocks[self.block], launch, width, height)
        self.barrier = np.zeros(self.count, np.int64)
        """Number of the barrier that a lane waits at, plus one; 0 if it does not wait."""
        self.expected = np.zeros(self.count, np.int64)
        self.at = np.zeros(self.count, np.int64)
        self.reached = np.zeros(self.count, np.int64)
        """The last block that a lane has run since a barrier, if not all lanes ran it."""
        self.carry: Value = np.zeros(self.count, np.bool_)
        self.local = np.full((self.count, 0), machine.poison, np.uint8)
        self.copies = Copies()
        self.depth = 0
        self.top = Activation(self, machine.entry, None, 0)
        self.now = self.top

    def live(self) -> Mask:
        """Return the lanes that have not ended."""
        active = self.top.active
        return np.ones(self.count, np.bool_) if active is None else active

    def lanes_of(self, mask: Mask | None) -> Ints:
        """Return the positions of the lanes of a mask; None is all."""
        return np.arange(self.count) if mask is None else np.flatnonzero(mask)

    def spread(self, value: Value) -> Value:
        """Return the value of each lane, if it is one number for all."""
        return value if value.ndim else np.full(self.count, value)

    def go_on(self, passing: Mask) -> None:
        """Let lanes go on after a barrier."""
        self.barrier[passing] = 0
        self.expected[passing] = 0
        self.reached[passing] = 0

    def need_local(self, size: int) -> None:
        """Make room for the local memory of a call."""
        if size > self.local.shape[1]:
            width = size - self.local.shape[1]
            more = np.full((self.count, width), self.machine.poison, np.uint8)
            self.local = np.concatenate([self.local, more], axis=1)


class Activation:
    """A call of a function by some lanes; the first is the kernel's own.

    Args:
        group: The lanes.
        decoded: The function.
        active: The lanes that call it; None is all.
        base: Where its local memory begins.
    """

    def __init__(self, group: Group, decoded: Decoded, active: Mask | None, base: int) -> None:
        group.need_local(base + decoded.frame_bytes)
        self.base = base
        self.active = active
        self.registers: dict[str, Value] = {
            name: poison(kind, group.machine.poison)
            for name, kind in decoded.function.registers.items()
        }
        self.group = group
        self._decoded = decoded
        self._labels = decoded.function.labels
        self._next: int | Ints = 0  # the block of all lanes, or of each

    def run(self) -> None:
        """Run until each lane waits at a barrier or has returned."""
        group, budget = self.group, self.group.machine.budget
        watcher = group.machine.watcher
        while True:
            current, mask = self._choose()
            if current < 0:
                return
            block = self._decoded.blocks[current]
            budget.take(len(block))
            if watcher is not None and self is group.top:
                watcher.block(group, current, mask)
            if mask is not None and len(block) > 1:
                group.reached[mask] = np.maximum(group.reached[mask], current)
            jumped = False
            for instruction, step in block:
                chosen = mask
                if instruction.guard:
                    chosen, none = self._guarded(instruction, mask)
                    if none:
                        continue
                if step is not None:
                    step(group, chosen)
                else:
                    jumped = self._control(instruction, chosen, mask, current)
            if not jumped:
                self._move(mask, current + 1)

    def state(self) -> tuple[dict[str, Value], int | Ints, Mask | None]:
        """Return where the call is, so that it can be tried further."""
        place = self._next if isinstance(self._next, int) else self._next.copy()
        return dict(self.registers), place, self.active

    def restore(self, state: tuple[dict[str, Value], int | Ints, Mask | None]) -> None:
        """Go back to an earlier state."""
        self.registers, self._next, self.active = state

    def _choose(self) -> tuple[int, Mask | None]:
        """Return the block to run and the lanes that run it; -1 if there is none."""
        waits = self.group.barrier
        if isinstance(self._next, int):
            if (self.active is not None and not self.active.any()) or waits.any():
                if not waits.any() or (waits > 0)[self.group.live()].all():
                    return -1, None
                self._next = np.full(self.group.count, self._next)
            else:
                return self._next, self.active
        ready = waits == 0
        if self.active is not None:
            ready &= self.active
        places = self._next[ready]
        if not len(places):
            return -1, None
        current = int(places.min())
        left = self.group.count if self.active is None else self.active.sum()
        if current == places.max() and len(places) == left:
            self._next = current
            return current, self.active
        return current, ready & (self._next == current)

    def _guarded(self, instruction: Instruction, mask: Mask | None) -> tuple[Mask | None, bool]:
        """Return the lanes for which a guard holds, and whether there are none."""
        holds = self.registers[instruction.guard]
        if instruction.negated:
            holds = ~holds
        if holds.ndim == 0:
            return mask, not holds
        if mask is not None:
            holds = holds & mask
        elif holds.all():
            return None, False
        return holds, not holds.any()

    def _control(
        self, instruction: Instruction, chosen: Mask | None, mask: Mask | None, current: int
    ) -> bool:
        """Run an instruction that ends a block; return True if it says what comes next."""
        group, opcode = self.group, instruction.opcode
        if opcode == "bra":
            target = self._labels[instruction.operands[0]]
            self._branch(chosen, mask, target, current + 1)
            return True
        if opcode in ("ret", "exit"):
            if opcode == "exit" and self is not group.top:
                raise NotEmulated(instruction.text)
            live = np.ones(group.count, np.bool_) if self.active is None else self.active
            self.active = live & ~chosen if chosen is not None else live & False
            self._move(mask, current + 1)
            return True
        if opcode in ("bar", "barrier"):
            self._wait(instruction, chosen, current)
            return False
        if opcode == "call":
            self._call(instruction, chosen)
            return False
        if opcode == "trap":
            self._stop(instruction, chosen)
            return False
        if opcode == "brx" and "idx" in instruction.modifiers:
            self._branch_by_index(instruction, chosen if chosen is not None else mask, current + 1)
            return True
        raise NotEmulated(instruction.text)

    def _stop(self, instruction: Instruction, chosen: Mask | None) -> None:
        """End the lanes that a kernel stops by itself."""
        self.group.machine.report("trap", "the kernel stops itself", instruction)
        live = self.group.live()
        self.group.top.active = live & ~chosen if chosen is not None else live & False

    def _branch_by_index(self, instruction: Instruction, lanes: Mask | None, after: int) -> None:
        register, table = instruction.operands
        names = self._decoded.function.tables.get(table)
        if names is None or instruction.guard:
            raise NotEmulated(instruction.text)
        targets = np.array([self._labels[name] for name in names])
        index = np.broadcast_to(self.registers[register], self.group.count).astype(np.int64)
        if isinstance(self._next, int):
            self._next = np.full(self.group.count, after - 1)
        chosen = slice(None) if lanes is None else lanes
        self._next[chosen] = targets[np.minimum(index[chosen], len(targets) - 1)]

    def _branch(self, chosen: Mask | None, mask: Mask | None, target: int, after: int) -> None:
        if chosen is None or (mask is not None and (chosen == mask).all()):
            self._move(mask, target)
            watcher = self.group.machine.watcher
            if watcher is not None and target < after and self is self.group.top:
                watcher.again(self, target, after - 1, mask)
            return
        if isinstance(self._next, int):
            self._next = np.full(self.group.count, self._next)
        self._next[slice(None) if mask is None else mask] = after
        self._next[chosen] = target

    def _move(self, mask: Mask | None, target: int) -> None:
        if isinstance(self._next, int):
            self._next = target  # all lanes of the call are at one place
        else:
            self._next[slice(None) if mask is None else mask] = target

    def _wait(self, instruction: Instruction, chosen: Mask | None, current: int) -> None:
        group = self.group
        if not group.machine.holds:
            return
        if self is not group.top or not _BARRIER.issuperset(instruction.modifiers):
            raise NotEmulated(instruction.text)
        numbers = [_literal(text, instruction) for text in instruction.operands]
        lanes = slice(None) if chosen is None else chosen
        group.barrier[lanes] = 1 + (numbers[0] if numbers else 0)
        group.expected[lanes] = numbers[1] if len(numbers) > 1 else 0
        group.at[lanes] = current

    def _call(self, instruction: Instruction, chosen: Mask | None) -> None:
        """Run a function for the lanes that call it."""
        group = self.group
        results, name, arguments = _called(instruction)
        if name == "__assertfail":
            self._stop(instruction, chosen)
            return
        callee = group.machine.decoded(name)
        function = callee.function
        if group.depth >= _MOST_DEPTH or {*instruction.modifiers} - {"uni"}:
            raise NotEmulated(instruction.text)
        base = self.base + self._decoded.frame_bytes
        active = chosen
        called = Activation(group, callee, None if active is None else active.copy(), base)
        for variable, argument in zip(function.parameters, arguments, strict=True):
            self._copy(self.base + self._decoded.frame[argument], base, callee, variable)
        group.now, group.depth = called, group.depth + 1
        called.run()
        if group.barrier.any():
            raise NotEmulated(f"a barrier in {name}")
        group.now, group.depth = self, group.depth - 1
        lanes = slice(None) if active is None else active
        for variable, result in zip(function.results, results, strict=True):
            start, end = base + callee.frame[variable.name], self.base + self._decoded.frame[result]
            size = variable.size or variable.align
            group.local[lanes, end : end + size] = group.local[lanes, start : start + size]

    def _copy(self, start: int, base: int, callee: Decoded, variable: Variable) -> None:
        local, size = self.group.local, variable.size or variable.align
        end = base + callee.frame[variable.name]
        local[:, end : end + size] = local[:, start : start + size]


def _called(instruction: Instruction) -> tuple[list[str], str, list[str]]:
    """Return the results, the name and the arguments of a call."""
    operands = instruction.operands
    results = _names(operands[0]) if operands[0].startswith("(") else []
    name, *rest = operands[1:] if operands[0].startswith("(") else operands
    return results, name, _names(rest[0]) if rest else []


def check_control(instruction: Instruction, function: Function, module: Module) -> str:
    """Return the function of the module that an instruction which ends a block calls, or "".

    Raises:
        NotEmulated: The instruction is not known, which would show when it is run.
    """
    opcode, modifiers, operands = instruction.opcode, {*instruction.modifiers}, instruction.operands
    is_barrier = opcode in ("bar", "barrier")
    known = {"bra": {"uni"}, "brx": {"idx", "uni"}, "ret": {"uni"}, "call": {"uni"}}
    if modifiers - (_BARRIER if is_barrier else known.get(opcode, set())):
        raise NotEmulated(instruction.text)
    if is_barrier:
        for text in operands:
            _literal(text, instruction)
    if (is_barrier or opcode == "exit") and not function.is_entry:
        raise NotEmulated(f"in a function that is called: {instruction.text}")
    if opcode == "brx":
        names = function.tables.get(operands[1])
        no_target = names is None or any(name not in function.labels for name in names)
        if "idx" not in modifiers or instruction.guard or no_target:
            raise NotEmulated(instruction.text)
    if opcode != "call":
        return ""
    _, name, _ = _called(instruction)
    if name == "__assertfail":
        return ""
    if name not in module.functions:
        raise NotEmulated(f"a call of {name}")
    return name


def poison(kind: str, byte: int) -> Value:
    """Return the value of a register of a type that nothing has written."""
    if kind == "pred":
        return np.ones((), np.bool_)
    return np.full(SIZES[kind], byte, np.uint8).view(raw_type(SIZES[kind])).reshape(())


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.strip("() ").split(",") if name.strip()]


def _literal(text: str, instruction: Instruction) -> int:
    if not text.isdigit():
        raise NotEmulated(instruction.text)
    return int(text)


def _rows(warp: Ints) -> Ints:
    """Return the position of the first lane of each lane's warp."""
    first: dict[int, int] = {}
    for position, number in enumerate(warp.tolist()):
        first.setdefault(number, position)
    return np.array([first[number] for number in warp.tolist()], np.int64)


def _special(
    thread: Ints, block: Ints, launch: Launch, width: int, height: int
) -> dict[str, Value]:
    """Return the registers that say where a lane is."""
    across, down, _ = launch.grid

    def narrow(values: Ints) -> Value:
        value = values.astype(np.uint32)
        return value[:1].reshape(()) if (value == value[0]).all() else value

    special = {
        "%tid.x": narrow(thread % width),
        "%tid.y": narrow(thread // width % height),
        "%tid.z": narrow(thread // (width * height)),
        "%ctaid.x": narrow(block % across),
        "%ctaid.y": narrow(block // across % down),
        "%ctaid.z": narrow(block // (across * down)),
        "%laneid": narrow(thread % WARP),
        "%warpid": narrow(thread // WARP),
        "WARP_SZ": np.full((), WARP, np.uint32),
    }
    for number, axis in enumerate("xyz"):
        special[f"%ntid.{axis}"] = np.full((), launch.block[number], np.uint32)
        special[f"%nctaid.{axis}"] = np.full((), launch.grid[number], np.uint32)
    below = (np.uint64(1) << (thread % WARP).astype(np.uint64)).astype(np.uint64)
    special["%lanemask_eq"] = below.astype(np.uint32)
    special["%lanemask_lt"] = (below - np.uint64(1)).astype(np.uint32)
    special["%lanemask_le"] = (below * np.uint64(2) - np.uint64(1)).astype(np.uint32)
    special["%lanemask_gt"] = ~special["%lanemask_le"]
    special["%lanemask_ge"] = ~special["%lanemask_lt"]
    return special
