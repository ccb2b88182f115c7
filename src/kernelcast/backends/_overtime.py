"""Overtime: whether a candidate works when nothing is asked of it.

CPU time that it takes outside of its calls, to work ahead, to finish late or to disturb the
reference, is cheating. The reference answers as many idle requests: what they cost on this machine,
it shows.
"""

from __future__ import annotations

from statistics import median
from typing import Protocol

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


class Audited(Protocol):
    """A process whose CPU time outside of calls is added up."""

    idle_cpu_s: float

    def audit(self) -> None:
        """Add what it took since the last look."""
        ...


class Overtime:
    """What both processes took outside of their calls so far, and what follows."""

    def __init__(self, candidate: Audited, reference: Audited) -> None:
        self._candidate, self._reference = candidate, reference
        self._request_s = self._busy_s = 0.0
        self._seen_s = 0.0, 0.0
        self._rounds: list[float] = []
        self._reference_bursts = 0
        self.found = False

    def worked(self, seconds: float) -> None:
        """The candidate answered a request after so long."""
        self._request_s = seconds
        self._busy_s += seconds

    def check(self, *, of_a_round: bool = False) -> Failure | None:
        """Whether it is too much by now.

        A round now and then may be charged with what the machine did meanwhile, so a habit is what
        the median round shows, or bursts in many rounds: of those who never sleep every third is
        one, for the others get their turn too. On a machine that charges the honest with bursts,
        the reference has as many, and each excuses two. Only what is far beyond that is told at
        once.
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
        self.found = self._is_habit() or ours_s > bearable_s
        if not self.found:
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
        bursts = sum(each > _BURST_S for each in self._rounds)
        excused = _EXCUSED * self._reference_bursts
        return bursts >= excused + max(_FEWEST_BURSTS, _HABIT * rounds)
