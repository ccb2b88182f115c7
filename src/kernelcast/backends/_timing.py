"""The one timing protocol, whatever the language: interleaved pairs until the ratio is precise.

Candidate and reference run alternately in random ABBA blocks, each pair on the same new inputs. The
statistic is the median over rounds of the log2 ratio (mean over the timed cases, so the geometric
mean of the speedups), with the sign test's interval for a median: it assumes nothing about the
shape of the noise, and no sample is ever thrown away. Timing stops on precision, never on
significance. Clocks, processes and verification are the contest's business. What a request costs
without the work is learnt from the reference's process alone: no candidate can inflate it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import geometric_mean, median
from typing import Protocol

import numpy as np

from kernelcast.types import CaseTiming, Effort, Failure, Timing


class OutOfTime(Exception):
    """The time for a measurement ended before a request was answered. No kernel has failed."""


class Contest(Protocol):
    """Runs two kernels on the same inputs; times are wall seconds of a whole request by the
    parent's clock. Any request may end with `OutOfTime`.
    """

    def stage(self, case: str, calls: int) -> None:
        """New inputs for so many calls, the same for both kernels."""
        ...

    def run(self, case: str, calls: int, *, candidate: bool) -> float | Failure:
        """Call one of the kernels on the staged inputs."""
        ...

    def idle(self, case: str, calls: int) -> float | Failure:
        """The same request without the work, for its overhead."""
        ...

    def settle(self, case: str, calls: int) -> Failure | None:
        """Verify what the candidate made of the staged inputs, once both have run."""
        ...

    def most_calls(self, case: str) -> int:
        """How many calls fit into one request."""
        ...


@dataclass(frozen=True)
class Precision:
    """When to stop: the interval's half-width, and bounds on rounds and seconds.

    `enough_s` ends the timing once there are `min_rounds`, however slow the kernels are. A
    candidate whose whole interval lies below `hopeless_log2` is let go after `fewest_rounds`:
    nobody needs to know to 3% how much slower than a quarter of the reference's speed it is.
    Kernels are called as often in a request as it takes to reach `shortest_request_s`, but no
    request is made longer than `longest_request_s` by repetition.
    """

    half_width_log2: float = math.log2(1.03)
    min_rounds: int = 20
    max_rounds: int = 60
    enough_s: float = 0.5
    hopeless_log2: float = -2.0
    fewest_rounds: int = 8
    shortest_request_s: float = 0.3e-3
    longest_request_s: float = 10e-3


PRECISION: dict[Effort, Precision] = {
    "screening": Precision(),
    "normal": Precision(math.log2(1.01), max_rounds=200, enough_s=1.5),
    "final": Precision(math.log2(1.005), max_rounds=400, enough_s=3.0),
}
# Stopping on precision prefers intervals that are narrow by chance, and two processes of the same
# kernel differ by a few tenths of a percent: 98% by the sign test is 95% of what is seen.
_CONFIDENCE = 0.98
_OVERHEAD_SAMPLES = 9


@dataclass(frozen=True)
class Interval:
    """A median with its interval; of fewer than seven samples, for lack of one, the range."""

    median: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the interval's length."""
        return (self.high - self.low) / 2


@cache
def interval_rank(count: int) -> int:
    """The r for which the r-th smallest and r-th largest of `count` samples bound the median.

    By the sign test: the true median is missed with probability 2 P(Binomial(count, 1/2) < r),
    and r is the largest that keeps this within 2%; 0 where there is none.
    """
    rank, below = 0, 0
    while True:
        below += math.comb(count, rank)
        if 2 * below > (1.0 - _CONFIDENCE) * 2**count:
            return rank
        rank += 1


def median_interval(samples: Sequence[float]) -> Interval:
    """The samples' median and the sign test's interval for the true one."""
    ordered = sorted(samples)
    rank = max(interval_rank(len(ordered)), 1)
    return Interval(median(ordered), ordered[rank - 1], ordered[-rank])


def noise_floor(timing: Timing) -> float:
    """From the reference timed against itself: the largest log2 ratio that still means nothing."""
    return max(abs(timing.low), abs(timing.high))


class _Duel:
    """Both kernels on one case: calls a request, latest overheads of one, and times so far."""

    def __init__(self, contest: Contest, case: str) -> None:
        self._contest = contest
        self.case = case
        self._calls = 1
        self._idle_s: deque[float] = deque(maxlen=_OVERHEAD_SAMPLES)
        self._runtimes_s: dict[bool, list[float]] = {True: [], False: []}
        self.log2_ratios: list[float] = []

    def warm_up(self, precision: Precision) -> Failure | None:
        """Learn the overhead and how many calls make a request long enough to time."""
        fastest_s = {True: math.inf, False: math.inf}
        for candidate_first in (True, False):
            request_s = self._requests(candidate_first=candidate_first)
            if isinstance(request_s, Failure):
                return request_s
            fastest_s = {side: min(fastest_s[side], request_s[side]) for side in fastest_s}
        if failure := self.learn_overhead(_OVERHEAD_SAMPLES):
            return failure
        shorter_s, longer_s = sorted(self._per_call(each, 0.01) for each in fastest_s.values())
        needed = math.ceil(precision.shortest_request_s / shorter_s)
        bearable = math.floor(precision.longest_request_s / longer_s)
        calls = max(1, min(needed, bearable, self._contest.most_calls(self.case)))
        if calls == self._calls:
            return None
        self._calls = calls
        return self.learn_overhead(_OVERHEAD_SAMPLES)

    def round(self, *, candidate_first: bool) -> Failure | None:
        """Time both once, on inputs that neither has seen."""
        request_s = self._requests(candidate_first=candidate_first)
        if isinstance(request_s, Failure):
            return request_s
        runtime_s = {side: self._per_call(each) for side, each in request_s.items()}
        for side, seconds in runtime_s.items():
            self._runtimes_s[side].append(seconds)
        self.log2_ratios.append(math.log2(runtime_s[False] / runtime_s[True]))
        return None

    def _requests(self, *, candidate_first: bool) -> dict[bool, float] | Failure:
        """Seconds of a request by side (True is the candidate's), its outputs verified."""
        self._contest.stage(self.case, self._calls)
        request_s = {}
        for side in (candidate_first, not candidate_first):
            seconds = self._contest.run(self.case, self._calls, candidate=side)
            if isinstance(seconds, Failure):
                return seconds
            request_s[side] = seconds
        return self._contest.settle(self.case, self._calls) or request_s

    def learn_overhead(self, samples: int = 1) -> Failure | None:
        """What a request costs without the work; it drifts with the load on the machine."""
        for _ in range(samples):
            seconds = self._contest.idle(self.case, self._calls)
            if isinstance(seconds, Failure):
                return seconds
            self._idle_s.append(seconds)
        return None

    def _per_call(self, request_s: float, least_share: float = 0.25) -> float:
        # Where a request was nearly all overhead, what is left of it means nothing: no kernel is
        # credited with less than a quarter of what it took.
        return max(request_s - median(self._idle_s), least_share * request_s) / self._calls

    def timing(self, rounds: int) -> CaseTiming:
        """What was measured of this case in so many rounds."""
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
) -> Timing | Failure:
    """Time the candidate against the reference, or pass on the first failure.

    No block is begun that would not end before `deadline` (of `time.perf_counter`). A block that
    does not end in time does not count, and the timing is unresolved.

    Raises:
        OutOfTime: The time ended before the first block did.
    """
    duels = [_Duel(contest, case) for case in cases]
    rounds: list[float] = []
    cut_short = False
    try:
        for duel in duels:
            if failure := duel.warm_up(precision):
                return failure
        started = time.perf_counter()
        while True:
            block = _block(duels, rng)
            if isinstance(block, Failure):
                return block
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
    timed = [duel.timing(len(rounds)) for duel in duels]
    return Timing(
        log2_speedup=interval.median,
        low=interval.low,
        high=interval.high,
        resolved=precise and len(rounds) >= precision.fewest_rounds and not cut_short,
        runtime_s=geometric_mean(each.runtime_s for each in timed),
        reference_runtime_s=geometric_mean(each.reference_runtime_s for each in timed),
        cases=tuple(timed),
    )


def _block(duels: Sequence[_Duel], rng: np.random.Generator) -> list[float] | Failure:
    """Two rounds over all cases, in either order; the mean log2 ratio of each."""
    rounds = []
    for duel in duels:
        if failure := duel.learn_overhead():
            return failure
    for candidate_first in rng.permutation([True, False]):
        for duel in duels:
            if failure := duel.round(candidate_first=bool(candidate_first)):
                return failure
        rounds.append(math.fsum(duel.log2_ratios[-1] for duel in duels) / len(duels))
    return rounds
