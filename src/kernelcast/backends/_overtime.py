"""Overtime: what a candidate takes outside of its timed requests.

A candidate that works ahead, finishes late or disturbs the reference cheats. On a CPU it gains
nothing by it, because what it takes aside is added to its time. On a device, this is the check that
copies take no more CPU time than the reference's.
"""

from __future__ import annotations

import math

from kernelcast.backends._child import Child
from kernelcast.types import Failure, FailureKind

_ALLOWED_S = 50e-6  # in a round, beyond what the other one takes
_FEWEST_ROUNDS = 8
_DEVIATIONS = 2.5  # of a count of rounds of which half exceed by chance
_BURST_S = 100e-6
_FEWEST_BURSTS = 4
_HABIT = 0.15  # of the rounds
_EXCUSED = 2  # bursts, for each of the reference's
_GROSS_S = 10e-3  # machines charge whole ticks of 4 ms
_GROSS_SHARE = 0.1
_GROSS_FACTOR = 1.5  # of what the other one takes, which may be the machine's bursts


class Overtime:
    """What both processes took outside of their timed requests so far."""

    def __init__(self, candidate: Child, reference: Child) -> None:
        self._candidate, self._reference = candidate, reference
        self._busy_s = 0.0
        self._seen_s = 0.0, 0.0
        self._rounds: list[float] = []
        self._reference_bursts = 0
        self.exceeded = False

    def worked(self, seconds: float) -> None:
        """Count a request that the candidate answered after so long."""
        self._busy_s += seconds

    def check(self, *, of_a_round: bool = False) -> Failure | None:
        """A failure if the candidate's overtime is too much by now.

        The machine's own work may be charged to a single round, and copies take now more and now
        less. So what counts is a habit: more than the other one in more rounds than chance
        explains, or bursts in many rounds (a process that never sleeps has one in every third, as
        others get their turn too). On a machine that charges honest processes with bursts, the
        reference has as many, and each excuses two. Only far more than that fails at once.
        """
        if not of_a_round:  # in a round, both were looked at just now
            self._candidate.audit()
            self._reference.audit()
        ours_s, theirs_s = self._candidate.aside_s, self._reference.aside_s
        spent_s = ours_s - self._seen_s[0], theirs_s - self._seen_s[1]
        self._seen_s = ours_s, theirs_s
        if of_a_round:
            more_s = spent_s[0] - spent_s[1]
            self._rounds.append(more_s - _ALLOWED_S)
            self._reference_bursts += -more_s - _ALLOWED_S > _BURST_S
        bearable_s = _GROSS_S + _GROSS_SHARE * self._busy_s + _GROSS_FACTOR * theirs_s
        self.exceeded = self._is_habit() or ours_s > bearable_s
        if not self.exceeded:
            return None
        return Failure(
            kind=FailureKind.CHEATING,
            message=f"took {ours_s * 1e3:.1f} ms outside of its calls, the reference "
            f"{theirs_s * 1e3:.1f} ms",
        )

    def _is_habit(self) -> bool:
        rounds = len(self._rounds)
        exceeding = sum(excess_s > 0.0 for excess_s in self._rounds)
        by_chance = rounds / 2 + _DEVIATIONS * math.sqrt(rounds) / 2
        if rounds >= _FEWEST_ROUNDS and exceeding >= by_chance:
            return True
        bursts = sum(excess_s > _BURST_S for excess_s in self._rounds)
        excused = _EXCUSED * self._reference_bursts
        return bursts >= excused + max(_FEWEST_BURSTS, _HABIT * rounds)
