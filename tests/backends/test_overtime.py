"""Who works outside of calls is found out, and nobody else, whatever the machine charges."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import cast

from kernelcast.backends._child import Child
from kernelcast.backends._overtime import Overtime
from kernelcast.types import FailureKind

ROUNDS = 60
REQUEST_S = 5e-3
USUAL_S = 0.02e-3

Taken = Callable[[], float]


class Process:
    """Takes in a round, outside of calls, what it says."""

    def __init__(self, taken: Taken) -> None:
        self.taken = taken
        self.aside_s = 0.0

    def audit(self) -> None:
        self.aside_s += self.taken()


def overtime_of(ours: Taken, theirs: Taken) -> Overtime:
    return Overtime(cast(Child, Process(ours)), cast(Child, Process(theirs)))


def found_after(ours: Taken, theirs: Taken, rounds: int = ROUNDS) -> int | None:
    """In which round it is found out."""
    overtime = overtime_of(ours, theirs)
    for number in range(1, rounds + 1):
        overtime.worked(REQUEST_S)
        for process in (overtime._candidate, overtime._reference):
            process.audit()
        failure = overtime.check(of_a_round=True)
        assert overtime.exceeded == (failure is not None)
        if failure is not None:
            assert failure.kind is FailureKind.CHEATING
            return number
    return None


def charged(chance: float, burst_s: float, seed: int) -> Taken:
    """The usual, and with that chance a burst."""
    rng = random.Random(seed)
    return lambda: USUAL_S + (burst_s if rng.random() < chance else 0.0)


def accused(ours: float, theirs: float, burst_s: float = 1e-3, looks: int = 400) -> float:
    """The share of measurements in which it is found out."""
    found = (
        found_after(charged(ours, burst_s, 2 * seed), charged(theirs, burst_s, 2 * seed + 1))
        for seed in range(looks)
    )
    return sum(each is not None for each in found) / looks


def test_the_usual_is_no_overtime_and_fifty_microseconds_more_soon_are() -> None:
    assert found_after(lambda: USUAL_S, lambda: USUAL_S, rounds=400) is None
    assert found_after(lambda: USUAL_S + 45e-6, lambda: USUAL_S, rounds=400) is None
    assert found_after(lambda: USUAL_S + 60e-6, lambda: USUAL_S) == 8


def test_one_who_works_much_is_found_at_once() -> None:
    assert found_after(lambda: 20e-3, lambda: USUAL_S) == 1
    assert found_after(lambda: REQUEST_S, lambda: USUAL_S) == 3


def test_a_machine_that_charges_everybody_with_bursts_makes_no_cheats() -> None:
    """One look errs seldom, and a kernel is called a cheat only if three agree."""
    for burst_s in (1e-3, 4e-3):
        for chance in (0.05, 0.1, 0.15, 0.25, 0.4):
            assert accused(chance, chance, burst_s, looks=200) ** 3 < 0.01
    assert accused(0.0, 0.3) == 0.0


def test_copies_that_take_now_more_and_now_less_make_no_cheat() -> None:
    def copies(seed: int, more_s: float = 0.0) -> Taken:
        rng = random.Random(seed)
        return lambda: more_s + rng.gauss(1e-3, 0.15e-3)

    honest = [found_after(copies(2 * seed), copies(2 * seed + 1)) for seed in range(400)]
    assert (sum(look is not None for look in honest) / len(honest)) ** 3 < 0.01  # three agree
    for seed in range(20):
        assert found_after(copies(2 * seed, more_s=0.5e-3), copies(2 * seed + 1)) is not None


def test_who_spins_is_found_though_the_others_get_their_turn() -> None:
    assert accused(1 / 3, 0.0) == 1.0
    assert accused(0.5, 0.05) > 0.98
    assert accused(0.9, 0.15) == 1.0


def test_what_is_spent_between_rounds_counts_in_the_whole() -> None:
    overtime = overtime_of(lambda: 6e-3, lambda: 0.0)
    overtime.worked(REQUEST_S)
    assert overtime.check() is None
    failure = overtime.check()  # more than 10 ms and a tenth of its calls
    assert failure is not None
    assert "took 12.0 ms outside of its calls, the reference 0.0 ms" in failure.message
