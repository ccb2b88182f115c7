"""The timing protocol of all languages: interleaved pairs until the ratio is precise.

Candidate and reference run alternately in random ABBA blocks, each pair on the same new inputs. The
statistic is the median over rounds of the log2 ratio (mean over the timed cases, so the geometric
mean of the speedups), with the sign test's interval for a median: it assumes nothing about the
shape of the noise, and no round is ever thrown away. Timing stops on precision, never on
significance. Nothing is subtracted from a request: what serving it costs is the same for both
kernels, so that it only draws the ratio to 1. Where it is a large part of a request, the timing is
unresolved, and its lower end is what is left if the candidate had been served for nothing. Clocks,
processes and verification are the contest's. `TIMING_PROTOCOL` is the version of all this.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import geometric_mean, median
from typing import Protocol

import numpy as np

from kernelcast.types import CaseTiming, Effort, Timing


class OutOfTime(Exception):
    """The time for a measurement ended before a request was answered. No kernel has failed."""


class Contest(Protocol):
    """Runs two kernels on the same inputs.

    Times are wall seconds of a whole request by the parent's clock, and what the process took
    beside it. Any request may raise `OutOfTime`, or another exception if a kernel failed.
    """

    def stage(self, case: str, calls: int) -> None:
        """Draw new inputs for so many calls, the same for both kernels."""

    def run(self, case: str, calls: int, *, candidate: bool) -> float:
        """Call one of the kernels on the staged inputs."""

    def idle(self, case: str, calls: int) -> float:
        """Make the same request to the reference without the work, for its overhead."""

    def settle(self, case: str, calls: int) -> None:
        """Verify the candidate's outputs on the staged inputs, once both have run."""

    def most_calls(self, case: str) -> int:
        """How many calls fit into one request."""


@dataclass(frozen=True)
class Precision:
    """When to stop: the interval's half-width, and bounds on rounds and seconds.

    `enough_s` ends the timing once there are `min_rounds`, however slow the kernels are. Timing of
    a candidate whose whole interval lies below `hopeless_log2` ends after `fewest_rounds`. Kernels
    are called as often in a request as it takes to reach `shortest_request_s`, but repetition
    makes no request longer than `longest_request_s`.
    """

    half_width_log2: float = math.log2(1.03)
    min_rounds: int = 20
    max_rounds: int = 60
    enough_s: float = 0.5
    hopeless_log2: float = -2.0
    fewest_rounds: int = 8
    shortest_request_s: float = 2e-3
    longest_request_s: float = 10e-3


PRECISION: dict[Effort, Precision] = {
    "screening": Precision(),
    "normal": Precision(math.log2(1.01), max_rounds=200, enough_s=1.5),
    "final": Precision(math.log2(1.005), max_rounds=400, enough_s=3.0),
}
# Stopping on precision prefers intervals that are narrow by chance, and two processes of the same
# kernel differ by a few tenths of a percent. With 98% by the sign test, 95% are covered.
_CONFIDENCE = 0.98
_OVERHEADS = 9
_IDLE_SHARE = 0.02  # of a request, if calls can be repeated
_LARGE_IDLE_SHARE = 0.2


@dataclass(frozen=True)
class Interval:
    """A median with its interval; of fewer than seven values, with their range."""

    median: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the interval's length."""
        return (self.high - self.low) / 2


@cache
def interval_rank(count: int) -> int:
    """The r for which the r-th smallest and r-th largest of `count` values bound the median.

    By the sign test, the true median is missed with probability 2 P(Binomial(count, 1/2) < r).
    r is the largest that keeps this within 2%, or 0.
    """
    rank, below = 0, 0
    while True:
        below += math.comb(count, rank)
        if 2 * below > (1.0 - _CONFIDENCE) * 2**count:
            return rank
        rank += 1


def median_interval(values: Sequence[float]) -> Interval:
    """The values' median and the sign test's interval for the true one."""
    ordered = sorted(values)
    rank = max(interval_rank(len(ordered)), 1)
    return Interval(median(ordered), ordered[rank - 1], ordered[-rank])


def noise_floor(timing: Timing) -> float:
    """The largest log2 ratio within noise, from the reference timed against itself."""
    return max(abs(timing.low), abs(timing.high))


class _Duel:
    """Both kernels on one case: calls a request, the overhead of a request, and times."""

    def __init__(self, contest: Contest, case: str) -> None:
        self._contest = contest
        self.case = case
        self._calls = 1
        self._idle_s = 0.0
        self._runtimes_s: dict[bool, list[float]] = {True: [], False: []}
        self.log2_ratios: list[float] = []

    def warm_up(self, precision: Precision) -> None:
        """Learn the overhead and how many calls make a request long enough to time."""
        one, other = (self._requests(candidate_first=first) for first in (True, False))
        self._learn_overhead()
        request_s = [min(one[side], other[side]) for side in one]
        shorter_s, longer_s = sorted(
            max(seconds - self._idle_s, 0.01 * seconds) for seconds in request_s
        )
        shortest_s = max(precision.shortest_request_s, self._idle_s / _IDLE_SHARE)
        needed = math.ceil(shortest_s / shorter_s)
        bearable = math.floor(precision.longest_request_s / longer_s)
        calls = max(1, min(needed, bearable, self._contest.most_calls(self.case)))
        if calls != self._calls:
            self._calls = calls
            self._learn_overhead()

    def _learn_overhead(self) -> None:
        """Time requests without the work."""
        idle = (self._contest.idle(self.case, self._calls) for _ in range(_OVERHEADS))
        self._idle_s = median(idle)

    def round(self, *, candidate_first: bool) -> None:
        """Time both once, on inputs that neither has seen."""
        for side, seconds in self._requests(candidate_first=candidate_first).items():
            self._runtimes_s[side].append(seconds / self._calls)
        ratio = self._runtimes_s[False][-1] / self._runtimes_s[True][-1]
        self.log2_ratios.append(math.log2(ratio))

    def _requests(self, *, candidate_first: bool) -> dict[bool, float]:
        """Seconds of a request by side (True is the candidate's), its outputs verified."""
        self._contest.stage(self.case, self._calls)
        request_s = {
            side: self._contest.run(self.case, self._calls, candidate=side)
            for side in (candidate_first, not candidate_first)
        }
        self._contest.settle(self.case, self._calls)
        return request_s

    def doubt_log2(self, rounds: int) -> float:
        """What a candidate served for nothing would owe to that; 0 if serving costs little."""
        ours_s, theirs_s = (
            median(self._runtimes_s[side][:rounds]) * self._calls for side in (True, False)
        )
        if self._idle_s <= _LARGE_IDLE_SHARE * ours_s:
            return 0.0
        return -math.log2(max(theirs_s - self._idle_s, 0.01 * theirs_s) / theirs_s)

    def timing(self, rounds: int) -> CaseTiming:
        """The timing of this case in so many rounds."""
        return CaseTiming(
            case=self.case,
            log2_ratios=tuple(self.log2_ratios[:rounds]),
            runtime_s=median(self._runtimes_s[True][:rounds]),
            reference_runtime_s=median(self._runtimes_s[False][:rounds]),
        )


def time_pairs(
    cases: Sequence[str],
    contest: Contest,
    rng: np.random.Generator,
    precision: Precision,
    deadline: float = math.inf,
) -> Timing:
    """Time the candidate against the reference.

    A block is two rounds over all cases, in either order. It is begun only if it should end before
    `deadline` (of `time.perf_counter`). A block that does not end in time does not count, and the
    timing is unresolved.

    Raises:
        OutOfTime: The time ended before the first block did.
    """
    duels = [_Duel(contest, case) for case in cases]
    rounds: list[float] = []
    cut_short = False
    try:
        for duel in duels:
            duel.warm_up(precision)
        started = time.perf_counter()
        while True:
            block = []
            for candidate_first in rng.permutation([True, False]):
                for duel in duels:
                    duel.round(candidate_first=bool(candidate_first))
                block.append(math.fsum(duel.log2_ratios[-1] for duel in duels) / len(duels))
            rounds += block
            elapsed_s = time.perf_counter() - started
            interval = median_interval(rounds)
            precise = interval.half_width <= precision.half_width_log2
            hopeless = interval.high < precision.hopeless_log2
            if (
                (precise and len(rounds) >= precision.min_rounds)
                or (hopeless and len(rounds) >= precision.fewest_rounds)
                or (elapsed_s >= precision.enough_s and len(rounds) >= precision.min_rounds)
                or len(rounds) >= precision.max_rounds
                or started + elapsed_s * (1 + 4 / len(rounds)) > deadline
            ):
                break
    except OutOfTime:
        if not rounds:
            raise
        cut_short = True
    timings = [duel.timing(len(rounds)) for duel in duels]
    doubt_log2 = math.fsum(duel.doubt_log2(len(rounds)) for duel in duels) / len(duels)
    enough = len(rounds) >= precision.fewest_rounds and not cut_short
    return Timing(
        log2_speedup=interval.median,
        low=interval.low - doubt_log2,
        high=interval.high,
        resolved=precise and enough and not doubt_log2,
        runtime_s=geometric_mean(timing.runtime_s for timing in timings),
        reference_runtime_s=geometric_mean(timing.reference_runtime_s for timing in timings),
        cases=tuple(timings),
    )
