"""The one timing protocol, whatever the language: interleaved pairs until the ratio is precise.

Candidate and reference run alternately in random ABBA blocks, each pair on the same inputs. The
statistic is the median over rounds of the log2 ratio (mean over the timed cases, so the geometric
mean of the speedups), with the sign test's interval for a median: it assumes nothing about the
shape of the noise, and no sample is ever thrown away. Timing stops on precision, never on
significance. Clocks, processes and verification are the runners' business.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean, median
from typing import Protocol

import numpy as np

from kernelcast.types import CaseTiming, Failure, Timing


class Runner(Protocol):
    """Runs one kernel; times are wall seconds of a whole request by the parent's clock."""

    def run(self, case: str, inputs: Sequence[int]) -> float | Failure:
        """Call the kernel once on each of these input sets; every output is verified."""
        ...

    def idle(self, case: str, calls: int) -> float | Failure:
        """The same request without the work, for its overhead."""
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
    """

    half_width_log2: float = math.log2(1.03)
    min_rounds: int = 10
    max_rounds: int = 40
    enough_s: float = 0.4
    hopeless_log2: float = -2.0
    fewest_rounds: int = 6
    shortest_request_s: float = 0.3e-3


SCREENING = Precision()
NOISE_FLOOR = Precision(half_width_log2=math.log2(1.005), min_rounds=20, enough_s=1.2)
_CONFIDENCE = 0.95
_OVERHEAD_SAMPLES = 9


@dataclass(frozen=True)
class Interval:
    """A median with its 95% interval; of fewer than six samples, for lack of one, the range."""

    median: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the interval's length."""
        return (self.high - self.low) / 2


def interval_rank(count: int) -> int:
    """The r for which the r-th smallest and r-th largest of `count` samples bound the median.

    By the sign test: the true median is missed with probability 2 P(Binomial(count, 1/2) < r),
    and r is the largest that keeps this within 5%; 0 where there is none.
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


@dataclass
class _Side:
    """One runner on one case: calls a request, latest overheads of one, and times so far."""

    runner: Runner
    case: str
    calls: int = 1
    idle_s: deque[float] = field(default_factory=lambda: deque(maxlen=_OVERHEAD_SAMPLES))
    runtimes_s: list[float] = field(default_factory=list)

    def warm_up(self, input_sets: int, precision: Precision) -> Failure | None:
        """Learn the overhead and how many calls make a request long enough to time."""
        fastest = math.inf
        for which in (0, input_sets - 1):
            seconds = self.runner.run(self.case, [which])
            if isinstance(seconds, Failure):
                return seconds
            fastest = min(fastest, seconds)
        if failure := self._learn_overhead(_OVERHEAD_SAMPLES):
            return failure
        needed = math.ceil(precision.shortest_request_s / self._per_call(fastest))
        calls = min(max(needed, 1), self.runner.most_calls(self.case))
        if calls == self.calls:
            return None
        self.calls = calls
        return self._learn_overhead(_OVERHEAD_SAMPLES)

    def _learn_overhead(self, samples: int) -> Failure | None:
        for _ in range(samples):
            seconds = self.runner.idle(self.case, self.calls)
            if isinstance(seconds, Failure):
                return seconds
            self.idle_s.append(seconds)
        return None

    def _per_call(self, request_s: float) -> float:
        # The floor only keeps the logarithm finite where a request was all overhead.
        return max(request_s - median(self.idle_s), 0.01 * request_s) / self.calls

    def time(self, inputs: Sequence[int]) -> float | Failure:
        """Seconds of one call, averaged over a request's calls."""
        if failure := self._learn_overhead(1):  # it drifts with the load on the machine
            return failure
        seconds = self.runner.run(self.case, inputs)
        if isinstance(seconds, Failure):
            return seconds
        runtime_s = self._per_call(seconds)
        self.runtimes_s.append(runtime_s)
        return runtime_s


def time_pairs(
    input_sets: Mapping[str, int],
    candidate: Runner,
    reference: Runner,
    rng: np.random.Generator,
    precision: Precision = SCREENING,
    deadline: float = math.inf,
) -> Timing | Failure:
    """Time the candidate against the reference, or pass on the first failure.

    `input_sets` counts the sets each timed case may be run on. No block is begun that would not
    end before `deadline` (of `time.perf_counter`).
    """
    cases = list(input_sets)
    pairs = [(_Side(candidate, case), _Side(reference, case)) for case in cases]
    for side in (side for pair in pairs for side in pair):
        if failure := side.warm_up(input_sets[side.case], precision):
            return failure

    log2_ratios: list[list[float]] = [[] for _ in cases]
    rounds: list[float] = []
    started = time.perf_counter()
    while True:
        for candidate_first in rng.permutation([True, False]):
            for (ours, theirs), ratios in zip(pairs, log2_ratios, strict=True):
                inputs = rng.integers(input_sets[ours.case], size=max(ours.calls, theirs.calls))
                runtime_s = {}
                for side in (ours, theirs) if candidate_first else (theirs, ours):
                    seconds = side.time([int(each) for each in inputs[: side.calls]])
                    if isinstance(seconds, Failure):
                        return seconds
                    runtime_s[side is ours] = seconds
                ratios.append(math.log2(runtime_s[False] / runtime_s[True]))
            rounds.append(math.fsum(ratios[-1] for ratios in log2_ratios) / len(cases))
        elapsed_s = time.perf_counter() - started
        interval = median_interval(rounds)
        precise = interval.half_width <= precision.half_width_log2
        if (
            (precise and len(rounds) >= precision.min_rounds)
            or (interval.high < precision.hopeless_log2 and len(rounds) >= precision.fewest_rounds)
            or (elapsed_s >= precision.enough_s and len(rounds) >= precision.min_rounds)
            or len(rounds) >= precision.max_rounds
            or started + elapsed_s * (1 + 4 / len(rounds)) > deadline
        ):
            break
    timed = [
        CaseTiming(
            case=case,
            log2_ratios=tuple(ratios),
            runtime_s=median(ours.runtimes_s),
            reference_runtime_s=median(theirs.runtimes_s),
        )
        for case, (ours, theirs), ratios in zip(cases, pairs, log2_ratios, strict=True)
    ]
    return Timing(
        log2_speedup=interval.median,
        low=interval.low,
        high=interval.high,
        resolved=precise and len(rounds) >= precision.fewest_rounds,
        runtime_s=geometric_mean(each.runtime_s for each in timed),
        reference_runtime_s=geometric_mean(each.reference_runtime_s for each in timed),
        cases=tuple(timed),
    )
