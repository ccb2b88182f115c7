"""What the hardware would do for a block of a kernel, counted by running its PTX.

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
from kernelcast.emulator.decoding import Address, Decode
from kernelcast.emulator.flow import Chain, Flow, chain_of
from kernelcast.emulator.instructions import decode
from kernelcast.emulator.kinds import ACCESSES, Kind, kind_of
from kernelcast.emulator.lanes import WARP, Activation, Group, Step, Value, no_step
from kernelcast.emulator.machine import Launch, Machine, Watcher
from kernelcast.emulator.memory import SHARED_WINDOW, Arena, Ints, Mask
from kernelcast.emulator.ptx import SIZES, Function, Instruction, Module, read_number
from kernelcast.emulator.traffic import LINE, NUMBERS, SECTOR, SECTORS, WAVES, Traffic, traffic_of

_ALIKE = 2  # turns of a loop that must be alike before others are not run
_LONGEST_PERIOD = 32
_SKIPPED_AT_LEAST = 2
_MOST_TURNS = 1 << 24


@dataclass(frozen=True)
class Phase:
    """What a block does between two barriers, `times` over.

    `issued` are instructions of warps.
    """

    times: float
    issued: Mapping[Kind, float]
    traffic: Mapping[Kind, Traffic]
    chain: Chain


@dataclass(frozen=True)
class Line:
    """What a line of the source costs: instructions of warps, sectors and waves."""

    issued: float
    sectors: float
    waves: float


@dataclass(frozen=True)
class Counts:
    """What one block of a kernel does."""

    warps: int
    phases: tuple[Phase, ...]
    loaded_sectors: float
    """Different sectors of global memory that it reads."""
    stored_sectors: float
    efficiency: float
    """Share of the lanes of issued instructions that do something."""
    instructions: int
    """Length of the code."""
    lines: Mapping[int, Line]

    def total(self, kind: Kind) -> float:
        """Return how often warps issue instructions of a kind."""
        return sum(phase.times * phase.issued.get(kind, 0.0) for phase in self.phases)

    def traffic(self, kind: Kind) -> Traffic:
        """Return all accesses of a kind."""
        sums = [0.0] * NUMBERS
        for phase in self.phases:
            if some := phase.traffic.get(kind):
                values = (some.requests, some.sectors, some.lines, some.waves, some.lanes)
                sums = [
                    total + phase.times * value for total, value in zip(sums, values, strict=True)
                ]
        return Traffic(*sums)


# -------------------------------------------------------------------------------------- counting

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
        self._block_lanes = np.zeros(self._blocks)
        self._now = np.zeros(0)
        self._loaded: set[int] = set()
        self._stored: set[int] = set()
        self._more_loaded = self._more_stored = 0.0
        self._path: list[tuple[int, int]] = []
        self._loops: dict[tuple[int, int], list[_Turn]] = {}
        self._places: dict[int, int] = {}
        self._probing: tuple[int, int] | None = None
        self._probed: list[tuple[int, int]] = []
        self._sees = False  # whether a turn that is tried is noted as one that was left out

    # ---------------------------------------------------------------- while it is made ready

    def decode(self, instruction: Instruction, function: Function, machine: Machine) -> Step:
        """Return a step that counts an access, computes what is needed, or does nothing."""
        real = decode(instruction, function, machine)  # also refuses what is not known
        needed = self._flow.is_needed(instruction)
        kind = kind_of(instruction)
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
            if self._probing is not None:
                if self._sees:
                    self._see(access.places(group, where), size, kind, mask)
            else:
                self._count(group, mask, where, size, index, kind)
                if also is not None:
                    self._count(group, mask, also, size, index + 1, "store_shared")
            if needed:
                real(group, mask)

        return step

    def ready(self) -> None:
        """Begin to count."""
        self._now = np.zeros(self._blocks + NUMBERS * len(self.accesses))

    # ------------------------------------------------------------------------ while it runs

    def block(self, group: Group, current: int, mask: Mask | None) -> None:
        """Count a block that some lanes run."""
        if mask is None:
            warps, lanes = len(np.unique(group.warp)), group.count
        else:
            warps, lanes = len(np.unique(group.warp[mask])), int(mask.sum())
        if self._probing is not None:
            self._probed.append((current, warps))
            if not self._probing[0] <= current <= self._probing[1]:
                raise _TurnEnds
            return
        self._path.append((current, warps))
        self._now[current] += warps
        self._block_lanes[current] += lanes

    def barrier(self) -> None:
        """Begin a phase."""
        if self._probing is None:
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
        sums = traffic_of(addresses, group.warp[lanes], size, shared=in_shared)
        start = self._blocks + NUMBERS * index
        self._now[start : start + NUMBERS] += sums
        if not in_shared:
            self._places[index] = int(addresses[0])
            self._see(addresses, size, kind)

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
        if self._probing is not None:
            if (header, current) == self._probing:
                self._probed.append((-1, 0))
                raise _TurnEnds
            return
        for inner in [k for k in self._loops if header <= k[0] and k[1] <= current]:
            if inner != (header, current):
                del self._loops[inner]
        turns = self._loops.setdefault((header, current), [])
        if turns and not self._inside(turns[-1].position, header, current):
            turns.clear()  # the loop has begun anew
        turns.append(self._turn(activation, mask))
        del turns[: -_LONGEST_PERIOD - _ALIKE]
        if len(turns) <= _ALIKE:
            return
        period = _period(turns[-2].places, turns[-1].places)
        if len(turns) >= period + _ALIKE and (carried := self._carried(turns[-period - _ALIKE :])):
            self._skip(activation, (header, current), turns[-period - 1 :], carried)

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
        )

    def _inside(self, position: int, header: int, current: int) -> bool:
        return all(header <= block <= current for block, _ in self._path[position:])

    def _carried(self, turns: Sequence[_Turn]) -> dict[str, tuple[Value, Value]] | None:
        """Return the registers that one turn hands to the next, and their steps.

        None if the turns are not alike.
        """
        paths = [self._path[a.position : b.position] for a, b in pairwise(turns)]
        masks = [turn.mask for turn in turns]
        same = all(_equal(mask, masks[0]) for mask in masks)
        if not same or any(path != paths[0] for path in paths) or not paths[0]:
            return None
        most = max(warps for _, warps in paths[-1])
        written: set[str] = set()
        carried: set[str] = set()
        for block, warps in paths[-1]:
            for instruction in self._function.blocks[block]:
                if not self._is_computed(instruction):
                    continue
                if instruction.opcode in ACCESSES and "param" not in instruction.modifiers:
                    return None  # what is loaded may lead elsewhere in each turn
                writes, reads = self._flow.of(instruction)
                carried |= reads - written
                if warps == most and not instruction.guard:
                    written |= writes
                else:
                    carried |= writes - written
        steps: dict[str, tuple[Value, Value]] = {}
        for name in carried & self._flow.needed:
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
        return steps

    def _is_computed(self, instruction: Instruction) -> bool:
        return instruction.opcode == "bra" or self._flow.is_needed(instruction)

    def _skip(
        self,
        activation: Activation,
        loop: tuple[int, int],
        turns: Sequence[_Turn],
        carried: Mapping[str, tuple[Value, Value]],
    ) -> None:
        period = len(turns) - 1
        path = [*self._path[turns[-2].position : turns[-1].position], (-1, 0)]

        def comes_back(turn: int) -> bool:
            return self._probe(activation, loop, carried, turn) == path

        most = 1
        while most < _MOST_TURNS and comes_back(most):
            most *= 2
        low, high = most // 2, most  # the turn `low` comes back, unless it is 0
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if comes_back(middle) else (low, middle)
        times = (low + 1) // period
        if low < _SKIPPED_AT_LEAST or not times:
            return
        count = times * period
        # The next turn that is run may use again what the last one that was left out has used.
        known_loaded, known_stored = len(self._loaded), len(self._stored)
        self._sees = True
        self._probe(activation, loop, carried, count - 1)
        self._sees = False
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

    def _probe(
        self,
        activation: Activation,
        loop: tuple[int, int],
        carried: Mapping[str, tuple[Value, Value]],
        turn: int,
    ) -> list[tuple[int, int]]:
        """Return the path of a later turn, which is not counted."""
        machine = activation.group.machine
        kept = activation.state()
        for name, (value, step) in carried.items():
            activation.registers[name] = value + step * value.dtype.type(turn)
        self._probing, self._probed, machine.holds = loop, [], False
        try:
            activation.run()
        except _TurnEnds:
            pass
        finally:
            self._probing, machine.holds = None, True
            activation.restore(kept)
        return self._probed

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
        lanes = float((self._block_lanes * lengths).sum())
        issued = sum(float((vector[: self._blocks] * lengths).sum()) for vector, _ in vectors)
        return Counts(
            warps,
            tuple(phases),
            len(self._loaded) + self._more_loaded,
            len(self._stored) + self._more_stored,
            lanes / max(issued * WARP, 1.0),
            int(lengths.sum()),
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
            start = self._blocks + NUMBERS * index
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
            start = self._blocks + NUMBERS * index
            line = sums.setdefault(instruction.line, [0.0, 0.0, 0.0])
            line[1] += float(total[start + SECTORS])
            line[2] += float(total[start + WAVES])
        return {line: Line(*values) for line, values in sums.items() if line and any(values)}


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
