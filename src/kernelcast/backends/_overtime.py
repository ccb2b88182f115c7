"""Overtime: CPU time that a candidate takes outside of its calls.

A candidate that works ahead, finishes late or disturbs the reference cheats. The reference answers
as many requests, and shows what they cost on this machine.
"""

from __future__ import annotations

from statistics import median

from kernelcast.backends._child import Child
from kernelcast.types import Failure, FailureKind

_ALLOWED_S = 30e-6  # in a round
_ALLOWED_SHARE = 0.02  # of a request
_FACTOR = 1.5  # of what the other one takes
_FEWEST_ROUNDS = 8
_BURST_S = 100e-6
_FEWEST_BURSTS = 4
_HABIT = 0.15  # of the rounds
_EXCUSED = 2  # bursts, for each of the reference's
_GROSS_S = 10e-3  # machines charge whole ticks of 4 ms
_GROSS_SHARE = 0.1


class Overtime:
    """The CPU time that both processes took outside of their calls so far."""

    def __init__(self, candidate: Child, reference: Child) -> None:
        self._candidate, self._reference = candidate, reference
        self._request_s = self._busy_s = 0.0
        self._seen_s = 0.0, 0.0
        self._rounds: list[float] = []
        self._reference_bursts = 0
        self.exceeded = False

    def worked(self, seconds: float) -> None:
        """Count a request that the candidate answered after so long."""
        self._request_s = seconds
        self._busy_s += seconds

    def check(self, *, of_a_round: bool = False) -> Failure | None:
        """A failure if the candidate's overtime is too much by now.

        The machine's own work may be charged to a single round. So what counts is a habit: the
        median round, or bursts in many rounds (a process that never sleeps has one in every third,
        as others get their turn too). On a machine that charges honest processes with bursts, the
        reference has as many, and each excuses two. Only far more than that fails at once.
        """
        self._candidate.audit()
        self._reference.audit()
        ours_s, theirs_s = self._candidate.idle_cpu_s, self._reference.idle_cpu_s
        spent_s = ours_s - self._seen_s[0], theirs_s - self._seen_s[1]
        self._seen_s = ours_s, theirs_s
        if of_a_round:
            allowed_s = _ALLOWED_S + _ALLOWED_SHARE * self._request_s
            self._rounds.append(spent_s[0] - _FACTOR * spent_s[1] - allowed_s)
            self._reference_bursts += spent_s[1] - _FACTOR * spent_s[0] - allowed_s > _BURST_S
        bearable_s = _GROSS_S + _GROSS_SHARE * self._busy_s + _FACTOR * theirs_s
        self.exceeded = self._is_habit() or ours_s > bearable_s
        if not self.exceeded:
            return None
        return Failure(
            kind=FailureKind.CHEATING,
            message=f"took {ours_s * 1e3:.1f} ms of CPU time outside of its calls, the reference "
            f"{theirs_s * 1e3:.1f} ms",
        )

    def _is_habit(self) -> bool:
        rounds = len(self._rounds)
        if rounds >= _FEWEST_ROUNDS and median(self._rounds) > 0.0:
            return True
        bursts = sum(excess_s > _BURST_S for excess_s in self._rounds)
        excused = _EXCUSED * self._reference_bursts
        return bursts >= excused + max(_FEWEST_BURSTS, _HABIT * rounds)
