"""How long the turns of a loop stay alike, worked out from what a turn computes.

A register varies if it grows by the same step in each turn. A comparison of what varies with what
does not has the same outcome up to a turn that can be computed. What else is made of varying
registers, or is loaded, is not known in other turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernelcast.emulator.flow import Flow
from kernelcast.emulator.kinds import ACCESSES
from kernelcast.emulator.memory import Ints, Mask
from kernelcast.emulator.ptx import Instruction

MOST_TURNS = 1 << 31
"""A loop that would make as many has no end that is known."""
_SUMS = frozenset({"add", "sub", "mov", "cvta", "neg", "cvt"})
_PRODUCTS = frozenset({"mul", "mad", "mul24", "mad24"})
_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "lo", "ls", "hi", "hs"})

Step = tuple[Instruction, bool]
"""An instruction that a turn runs, and whether all lanes of the turn run it."""


def carried_by(turn: Iterable[Step], flow: Flow) -> frozenset[str]:
    """Return the registers that a turn reads before it has written them."""
    written: set[str] = set()
    carried: set[str] = set()
    for instruction, by_all in turn:
        writes, reads = flow.of(instruction)
        carried |= reads - written
        if by_all and not instruction.guard:
            written |= writes
        else:
            carried |= writes - written
    return frozenset(carried)


@dataclass(frozen=True)
class Foreseen:
    """The comparisons of a turn whose outcome may change in a later one.

    Not exact if other turns may access memory in other patterns.
    """

    comparisons: tuple[Instruction, ...]
    exact: bool


def foresee(turn: Sequence[Step], flow: Flow, varying: Iterable[str]) -> Foreseen | None:
    """Follow what varies through a turn; None if other turns may take another path."""
    varies, unknown = set(varying), set[str]()
    carried = carried_by(turn, flow)
    comparisons: list[Instruction] = []
    exact = True
    for instruction, by_all in turn:
        writes, reads = flow.of(instruction)
        is_load = instruction.opcode in ACCESSES and "param" not in instruction.modifiers
        if instruction.opcode in ("bra", "brx") and reads & unknown:
            return None
        if is_load or reads & unknown:
            exact = False
            unknown |= writes
            varies -= writes
        elif not reads & varies:
            if by_all and not instruction.guard:  # else some lanes keep what they have
                unknown -= writes
                varies -= writes
        elif instruction.opcode == "setp" and compares_integers(instruction):
            if instruction in comparisons:
                return None  # only the last of its outcomes in a turn would be looked at
            comparisons.append(instruction)
        elif _is_linear(instruction, varies):
            varies |= writes
        else:
            exact = exact and instruction.opcode == "setp"
            unknown |= writes
            varies -= writes
    return None if carried & unknown else Foreseen(tuple(comparisons), exact)


def compares_integers(instruction: Instruction) -> bool:
    """Whether an instruction is a comparison whose outcome can be foreseen."""
    return not instruction.types[-1].startswith(("f", "bf")) and bool(
        _COMPARISONS & {*instruction.modifiers}
    )


def _is_linear(instruction: Instruction, varies: set[str]) -> bool:
    if instruction.guard or "sat" in instruction.modifiers:
        return False
    if instruction.opcode in _SUMS:
        return not any(kind.startswith(("f", "bf")) for kind in instruction.types)
    operands = instruction.operands[1:]
    if instruction.opcode == "shl":
        return operands[1] not in varies
    return instruction.opcode in _PRODUCTS and not {*operands[:2]} <= varies


def turns_alike(
    foreseen: Foreseen, before: Mapping[int, Ints], after: Mapping[int, Ints], mask: Mask | None
) -> int:
    """Return how many more turns take the same path.

    Args:
        foreseen: The comparisons.
        before: The difference of what each one compared in the last turn but one, by its `id`.
        after: The same of the last turn.
        mask: The lanes that run the loop.
    """
    least = MOST_TURNS
    for comparison in foreseen.comparisons:
        outcome = next(name for name in comparison.modifiers if name in _COMPARISONS)
        last, step = after[id(comparison)], after[id(comparison)] - before[id(comparison)]
        turns = _same_for(outcome, last, step)
        least = min(least, int((turns if mask is None or not turns.ndim else turns[mask]).min()))
    return least


def _same_for(outcome: str, last: Ints, step: Ints) -> Ints:
    """Return for how many turns the outcome for a difference stays the same while that grows."""
    if outcome in ("eq", "ne"):
        safe = np.where(step == 0, 1, step)
        meets = (step != 0) & (-last % safe == 0) & (-last // safe > 0)
        turns = np.where(meets, -last // safe - 1, MOST_TURNS)
        return np.where((last == 0) & (step != 0), 0, turns)
    # Whether the difference is below a bound: 0, or 1 for "at most 0".
    below = last - (1 if outcome in ("le", "gt", "ls", "hi") else 0)
    up, down = np.maximum(step, 1), np.maximum(-step, 1)
    rising = np.where(step > 0, -(below // up) - 1, MOST_TURNS)
    falling = np.where(step < 0, below // down, MOST_TURNS)
    return np.where(below < 0, rising, falling)
