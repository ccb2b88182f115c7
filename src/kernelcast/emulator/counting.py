"""Counts what the hardware would do for a block of a kernel, by running its PTX.

Only what leads to addresses and branches is computed. A loop whose turns are alike is run a few
times; the rest of its turns is added without being run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kernelcast.emulator import access
from kernelcast.emulator.counts import Counts, Line, Phase
from kernelcast.emulator.decoding import Address, Decode
from kernelcast.emulator.flow import Chain, Flow, chain_of
from kernelcast.emulator.instructions import decode
from kernelcast.emulator.kinds import ACCESSES, Kind, kind_of
from kernelcast.emulator.lanes import WARP, Activation, Group, Step, Value, no_step
from kernelcast.emulator.machine import Extent, Launch, Machine, Watcher
from kernelcast.emulator.memory import SHARED_WINDOW, Arena, Ints, Mask
from kernelcast.emulator.ptx import SIZES, Function, Instruction, Module, read_number
from kernelcast.emulator.traffic import LINE, NUMBERS, SECTOR, SECTORS, WAVES, Traffic, traffic_of
from kernelcast.emulator.turns import (
    MOST_TURNS,
    carried_by,
    compares_integers,
    foresee,
    turns_alike,
)

_ALIKE = 2  # turns of a loop that must be alike before others are not run
_LONGEST_PERIOD = 32
_SKIPPED_AT_LEAST = 2
_TRIED_BLOCKS = 256
_NEARLY_ALL = 0.95
_LOOKS = 8  # at turns of a loop whose addresses follow from what is loaded
_FEW_BLOCKS = 64  # along an axis of the grid: of more, the last one hardly counts


_Vector = npt.NDArray[np.float64]


@dataclass
class _Turn:
    """What was known when a loop began a turn."""

    registers: Mapping[str, Value]
    phases: int
    vector: _Vector
    position: int  # in the path
    mask: Mask | None
    loaded: float
    stored: float
    places: Mapping[int, int]  # the last address of each access to global memory
    compared: Mapping[int, Ints]  # the last difference of each comparison


@dataclass(frozen=True)
class _Handed:
    """The registers that a turn of a loop hands to the next, each with its value and its step.

    `turns` more take the same path. Not exact if they may access memory in other patterns.
    """

    steps: Mapping[str, tuple[Value, Value]]
    turns: int
    exact: bool


class _TurnEnds(Exception):
    """A turn of a loop that was tried came back to its begin, or left the loop."""


class _Counter(Watcher):
    """Counts what a machine runs, and leaves out turns of loops."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._flow = Flow(function)
        self._blocks = len(function.blocks)
        self.accesses: list[Instruction] = []
        self.phases: list[tuple[_Vector, float]] = []
        self._first_access = 2 * self._blocks  # in a vector, after warps and lanes of each block
        self._known: dict[tuple[bytes, bytes, int, bool, int], list[float]] = {}
        self._now = np.zeros(0)
        self._loaded: set[int] = set()
        self._stored: set[int] = set()
        self._more_loaded = self._more_stored = 0.0
        self._path: list[tuple[int, int]] = []
        self._loops: dict[tuple[int, int], list[_Turn]] = {}
        self._places: dict[int, int] = {}
        self._compared: dict[int, Ints] = {}
        self._strides: dict[tuple[int, int], int] = {}
        self.exact = True
        self._trying: tuple[int, int] | None = None
        self._tried = 0

    # ---------------------------------------------------------------- while it is made ready

    def decode(self, instruction: Instruction, function: Function, machine: Machine) -> Step:
        """Return a step that counts an access, computes what is needed, or does nothing."""
        real = decode(instruction, function, machine)  # also refuses what is not known
        needed = self._flow.is_needed(instruction)
        kind = kind_of(instruction)
        if instruction.opcode == "setp" and needed and compares_integers(instruction):
            return self._noting(instruction, Decode(instruction, function, machine), real)
        if instruction.opcode not in ACCESSES or kind in ("free", "matrix"):
            return real if needed else no_step
        index = len(self.accesses)
        self.accesses.append(instruction)
        d = Decode(instruction, function, machine)
        places = [text for text in instruction.operands if text.startswith("[")]
        where = access.address(d, places[-1] if instruction.opcode == "cp" else places[0])
        size = _width(instruction)
        also = access.address(d, places[0]) if instruction.opcode == "cp" else None
        if also is not None:  # a copy is an access to both memories
            self.accesses.append(replace(instruction, opcode="st", modifiers=("shared", "b32")))

        def step(group: Group, mask: Mask | None) -> None:
            if self._trying:
                self._see(access.places(group, where), size, kind, mask)
            else:
                self._count(group, mask, where, size, index, kind)
                if also is not None:
                    self._count(group, mask, also, size, index + 1, "store_shared")
            if needed:
                real(group, mask)

        return step

    def _noting(self, instruction: Instruction, d: Decode, real: Step) -> Step:
        """Return a step that also notes the difference of what is compared."""
        one, other = (d.read(text, d.kind) for text in d.operands[1:3])

        def step(group: Group, mask: Mask | None) -> None:
            if not self._trying:
                difference = one(group).astype(np.int64) - other(group).astype(np.int64)
                self._compared[id(instruction)] = difference
            real(group, mask)

        return step

    def ready(self) -> None:
        """Begin to count."""
        self._now = np.zeros(self._first_access + NUMBERS * len(self.accesses))

    # ------------------------------------------------------------------------ while it runs

    def block(self, group: Group, current: int, mask: Mask | None) -> None:
        """Count a block that some lanes run."""
        if mask is None:
            warps, lanes = len(np.unique(group.warp)), group.count
        else:
            warps, lanes = len(np.unique(group.warp[mask])), int(mask.sum())
        if self._trying:
            self._tried += 1
            inside = self._trying[0] <= current <= self._trying[1]
            if not inside or self._tried > _TRIED_BLOCKS:
                raise _TurnEnds
            return
        self._path.append((current, warps))
        self._now[current] += warps
        self._now[self._blocks + current] += lanes

    def barrier(self) -> None:
        """Begin a phase."""
        if not self._trying:
            self.phases.append((self._now, 1.0))
            self._now = np.zeros_like(self._now)

    def _count(
        self, group: Group, mask: Mask | None, where: Address, size: int, index: int, kind: Kind
    ) -> None:
        lanes = group.lanes_of(mask)
        addresses = access.places(group, where)[lanes]
        in_shared = kind in ("load_shared", "store_shared") or bool(
            (addresses >= SHARED_WINDOW).all()
        )
        if in_shared:
            addresses = np.where(addresses >= SHARED_WINDOW, addresses - SHARED_WINDOW, addresses)
        start = self._first_access + NUMBERS * index
        self._now[start : start + NUMBERS] += self._traffic(
            addresses, group.warp[lanes], size, shared=in_shared
        )
        if not in_shared:
            self._places[index] = int(addresses[0])
            self._see(addresses, size, kind)

    def _traffic(self, addresses: Ints, warps: Ints, size: int, *, shared: bool) -> list[float]:
        """Return what an access takes; one that lies alike, but elsewhere, takes the same."""
        first = int(addresses[0]) if len(addresses) else 0
        place = first % (4 if shared else LINE)
        key = ((addresses - first).tobytes(), warps.tobytes(), size, shared, place)
        if key not in self._known:
            self._known[key] = traffic_of(addresses, warps, size, shared=shared)
        return self._known[key]

    def _see(self, addresses: Ints, size: int, kind: Kind, mask: Mask | None = None) -> None:
        """Note the sectors of an access to global memory."""
        if kind in ("load_global", "store_global", "atomic"):
            seen = self._loaded if kind == "load_global" else self._stored
            if mask is not None:
                addresses = addresses[mask]
            seen.update(np.unique(addresses // SECTOR).tolist())
            if size > SECTOR // 2:
                seen.update(np.unique((addresses + size - 1) // SECTOR).tolist())

    # ------------------------------------------------------------------------------ of loops

    def again(self, activation: Activation, header: int, current: int, mask: Mask | None) -> None:
        """Leave out the turns of a loop that would be like the last ones."""
        if self._trying:
            if (header, current) == self._trying:
                raise _TurnEnds
            return
        loop = (header, current)
        for inner in [k for k in self._loops if header <= k[0] and k[1] <= current]:
            if inner != loop:
                del self._loops[inner]
        turns = self._loops.setdefault(loop, [])
        if turns and not self._inside(turns[-1].position, header, current):
            turns.clear()  # the loop has begun anew
        turns.append(self._turn(activation, mask))
        del turns[: -_LONGEST_PERIOD - _ALIKE]
        if len(turns) <= _ALIKE:
            return
        period = _period(turns[-2].places, turns[-1].places)
        if handed := self._handed(turns[-_ALIKE - 1 :]):
            if not handed.exact:
                self._skip(activation, loop, turns[-2:], handed)
            elif len(turns) >= period + _ALIKE and self._handed(turns[-period - _ALIKE :]):
                self._skip(activation, loop, turns[-period - 1 :], handed)

    def _turn(self, activation: Activation, mask: Mask | None) -> _Turn:
        return _Turn(
            dict(activation.registers),
            len(self.phases),
            self._now.copy(),
            len(self._path),
            mask,
            len(self._loaded) + self._more_loaded,
            len(self._stored) + self._more_stored,
            dict(self._places),
            dict(self._compared),
        )

    def _inside(self, position: int, header: int, current: int) -> bool:
        return all(header <= block <= current for block, _ in self._path[position:])

    def _handed(self, turns: Sequence[_Turn]) -> _Handed | None:
        """Return what one turn hands to the next; None if the turns are not alike."""
        paths = [self._path[a.position : b.position] for a, b in pairwise(turns)]
        masks = [turn.mask for turn in turns]
        same = all(_equal(mask, masks[0]) for mask in masks)
        if not same or any(path != paths[0] for path in paths) or not paths[0]:
            return None
        most = max(warps for _, warps in paths[-1])
        turn = [
            (instruction, warps == most)
            for block, warps in paths[-1]
            for instruction in self._function.blocks[block]
            if self._is_computed(instruction)
        ]
        steps: dict[str, tuple[Value, Value]] = {}
        for name in carried_by(turn, self._flow) & self._flow.needed:
            values = [turn.registers[name] for turn in turns]
            if values[-1].dtype == np.bool_:
                if not all(np.array_equal(value, values[0]) for value in values):
                    return None
                continue
            differences = [after - before for before, after in pairwise(values)]
            if not all((step == differences[0]).all() for step in differences):
                return None
            if differences[-1].any():
                steps[name] = (values[-1], differences[-1])
        foreseen = foresee(turn, self._flow, steps) if steps else None
        if foreseen is None:
            return None
        alike = turns_alike(foreseen, turns[-2].compared, turns[-1].compared, turns[-1].mask)
        return _Handed(steps, alike, foreseen.exact) if alike < MOST_TURNS else None

    def _is_computed(self, instruction: Instruction) -> bool:
        return instruction.opcode == "bra" or self._flow.is_needed(instruction)

    def _skip(
        self,
        activation: Activation,
        loop: tuple[int, int],
        turns: Sequence[_Turn],
        handed: _Handed,
    ) -> None:
        period, carried = len(turns) - 1, handed.steps
        times = handed.turns // period
        if not handed.exact:  # the addresses of other turns differ: look at some on the way
            self.exact = False
            times = min(times, self._strides.setdefault(loop, max(1, times // _LOOKS)))
        count = times * period
        if count < _SKIPPED_AT_LEAST:
            return
        # The next turn that is run may use again what the last one that was left out has used.
        known_loaded, known_stored = len(self._loaded), len(self._stored)
        self._try(activation, loop, carried, count - 1)
        self._more_loaded -= len(self._loaded) - known_loaded
        self._more_stored -= len(self._stored) - known_stored
        for name, (value, step) in carried.items():
            activation.registers[name] = value + step * value.dtype.type(count)
        before, after = turns[0], turns[-1]
        if before.phases == after.phases:
            self._now = self._now + times * (after.vector - before.vector)
        for index in range(before.phases, after.phases):
            vector, known = self.phases[index]
            self.phases[index] = (vector, known + times)
        self._more_loaded += times * (after.loaded - before.loaded)
        self._more_stored += times * (after.stored - before.stored)
        self._loops.pop(loop)

    def _try(
        self,
        activation: Activation,
        loop: tuple[int, int],
        carried: Mapping[str, tuple[Value, Value]],
        turn: int,
    ) -> None:
        """Run a later turn, of which only the sectors are noted."""
        machine = activation.group.machine
        kept = activation.state()
        for name, (value, step) in carried.items():
            activation.registers[name] = value + step * value.dtype.type(turn)
        self._trying, self._tried, machine.holds = loop, 0, False
        try:
            activation.run()
        except _TurnEnds:
            pass
        finally:
            self._trying, machine.holds = None, True
            activation.restore(kept)

    # -------------------------------------------------------------------------------- result

    def counts(self, warps: int) -> Counts:
        """Return what was counted."""
        vectors = [*self.phases, (self._now, 1.0)]
        blocks = self._function.blocks
        kinds = [[kind_of(instruction) for instruction in block] for block in blocks]
        chains = [chain_of(block, self._flow) for block in blocks]
        phases = [self._phase(vector, times, kinds, chains, warps) for vector, times in vectors]
        total = np.sum([vector * times for vector, times in vectors], axis=0)
        lengths = np.array([len(block) for block in blocks], float)
        issued = float((total[: self._blocks] * lengths).sum())
        lanes = float((total[self._blocks : self._first_access] * lengths).sum())
        return Counts(
            warps,
            tuple(phases),
            len(self._loaded) + self._more_loaded,
            len(self._stored) + self._more_stored,
            lanes / max(issued * WARP, 1.0),
            self.exact,
            int(lengths.sum()),
            _hot(total[: self._blocks], lengths),
            self._lines(total),
        )

    def _phase(
        self,
        vector: _Vector,
        times: float,
        kinds: Sequence[Sequence[Kind]],
        chains: Sequence[Chain],
        warps: int,
    ) -> Phase:
        issued: dict[Kind, float] = {}
        cycles = shared = loads = 0.0
        for block in np.flatnonzero(vector[: self._blocks]).tolist():
            count = float(vector[block])
            for kind in kinds[block]:
                issued[kind] = issued.get(kind, 0.0) + count
            chain = chains[block]
            cycles += chain.cycles * count / warps
            shared += chain.shared_loads * count / warps
            loads += chain.global_loads * count / warps
        traffic: dict[Kind, list[float]] = {}
        for index, instruction in enumerate(self.accesses):
            start = self._first_access + NUMBERS * index
            if vector[start]:
                sums = traffic.setdefault(kind_of(instruction), [0.0] * NUMBERS)
                for number in range(NUMBERS):
                    sums[number] += float(vector[start + number])
        return Phase(
            times,
            issued,
            {kind: Traffic(*sums) for kind, sums in traffic.items()},
            Chain(cycles, shared, loads),
        )

    def _lines(self, total: _Vector) -> dict[int, Line]:
        sums: dict[int, list[float]] = {}
        for number, block in enumerate(self._function.blocks):
            for instruction in block:
                line = sums.setdefault(instruction.line, [0.0, 0.0, 0.0])
                line[0] += float(total[number])
        for index, instruction in enumerate(self.accesses):
            start = self._first_access + NUMBERS * index
            line = sums.setdefault(instruction.line, [0.0, 0.0, 0.0])
            line[1] += float(total[start + SECTORS])
            line[2] += float(total[start + WAVES])
        return {line: Line(*values) for line, values in sums.items() if line and any(values)}


def _hot(warps: _Vector, lengths: _Vector) -> int:
    """Return the length of the blocks that run most often and make nearly all of the work."""
    order = np.argsort(-warps, kind="stable")
    issued = np.cumsum((warps * lengths)[order])
    count = int(np.searchsorted(issued, _NEARLY_ALL * issued[-1])) + 1
    return int(lengths[order[:count]].sum())


def _period(before: Mapping[int, int], after: Mapping[int, int]) -> int:
    """Return after how many turns the accesses of a loop lie alike in their lines."""
    steps = [after[index] - before[index] for index in after if index in before]
    return max([1, *(LINE // math.gcd(step, LINE) for step in steps if step % LINE)])


def _equal(one: Mask | None, other: Mask | None) -> bool:
    if one is None or other is None:
        return one is other
    return bool(np.array_equal(one, other))


def _width(instruction: Instruction) -> int:
    """Return the bytes that one lane accesses."""
    if instruction.opcode == "cp":
        return read_number(instruction.operands[2]) or 4
    if instruction.opcode in ("ldmatrix", "stmatrix"):
        return 16
    count = next((int(m[1:]) for m in instruction.modifiers if m in ("v2", "v4", "v8")), 1)
    return SIZES[instruction.types[-1]] * count


def blocks_to_count(grid: Extent) -> list[tuple[int, float]]:
    """Return the blocks that stand for a grid, each with its share of all blocks.

    One in the middle stands for most of them; the last ones by x, y and z may have less to do.
    """
    middle = [(extent - 1) // 2 for extent in grid]
    blocks = []
    for axis, extent in enumerate(grid):
        if 1 < extent <= _FEW_BLOCKS:
            last = [*middle[:axis], extent - 1, *middle[axis + 1 :]]
            blocks.append((_number(last, grid), 1.0 / extent))
    rest = math.prod(1.0 - share for _, share in blocks)
    scale = (1.0 - rest) / max(sum(share for _, share in blocks), 1e-9)
    edges = [(block, share * scale) for block, share in blocks]
    return [(_number(middle, grid), rest), *edges]


def _number(place: Sequence[int], grid: Extent) -> int:
    return place[0] + grid[0] * (place[1] + grid[1] * place[2])


def count(
    module: Module, entry: Function, launch: Launch, arena: Arena, block: int, steps: int = 400_000
) -> Counts:
    """Count what one block of a launch does.

    Raises:
        NotEmulated: The code has something that is not known, or takes too many steps.
    """
    counter = _Counter(entry)
    machine = Machine(module, entry, launch, arena, counter.decode, steps=steps, watcher=counter)
    counter.ready()
    machine.run([block])
    return counter.counts(-(-launch.threads // WARP))
