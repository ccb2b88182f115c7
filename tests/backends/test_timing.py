from __future__ import annotations

import math
import time
from collections.abc import Sequence
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from kernelcast.backends._timing import (
    PRECISION,
    OutOfTime,
    Precision,
    interval_rank,
    median_interval,
    noise_floor,
    time_pairs,
)
from kernelcast.types import Timing

SCREENING = PRECISION["screening"]


class PlantedError(Exception):
    """A kernel failed."""


class FakeContest:
    """Two kernels of known speed with log-normal noise, and a known overhead a request.

    Every staging is numbered; the journal holds what was asked for, in order: which side ran, on
    which staging, with how many calls.
    """

    def __init__(
        self,
        candidate_s: float | dict[str, float] = 1e-3,
        reference_s: float | dict[str, float] = 1e-3,
        noise: float = 0.02,
        seed: int = 0,
    ) -> None:
        self.call_s = {True: candidate_s, False: reference_s}
        self.noise = noise
        self.overhead_s = 1e-6
        self.fail_at: int | None = None
        self.room = 64
        self.rng = np.random.default_rng(seed)
        self.journal: list[tuple[bool, int, int]] = []
        self.idled: list[int] = []
        self.settled: list[int] = []
        self.staged = 0
        self.staged_calls = 0

    def stage(self, case: str, calls: int) -> None:
        self.staged += 1
        self.staged_calls = calls

    def run(self, case: str, calls: int, *, candidate: bool) -> float:
        assert calls == self.staged_calls <= self.room
        self.journal.append((candidate, self.staged, calls))
        if len(self.journal) == self.fail_at:
            raise PlantedError
        stated = self.call_s[candidate]
        call_s = stated if isinstance(stated, float) else stated[case]
        noise = float(np.exp(self.noise * self.rng.standard_normal()))
        return self.overhead_s + calls * call_s * noise

    def idle(self, case: str, calls: int) -> float:
        self.idled.append(calls)
        return self.overhead_s

    def settle(self, case: str, calls: int) -> None:
        assert calls == self.staged_calls
        self.settled.append(self.staged)

    def most_calls(self, case: str) -> int:
        return self.room

    def timed(self, *, candidate: bool) -> list[tuple[int, int]]:
        """Staging and calls of a side's requests after the two that warm up."""
        return [(staged, calls) for side, staged, calls in self.journal[4:] if side is candidate]


def timed(
    contest: FakeContest,
    precision: Precision = SCREENING,
    cases: Sequence[str] = ("main",),
    deadline: float = math.inf,
) -> Timing:
    return time_pairs(cases, contest, np.random.default_rng(0), precision, deadline)


@pytest.mark.parametrize("count", range(1, 80))
def test_interval_rank_is_the_exact_order_statistic_of_the_sign_test(count: int) -> None:
    rank = interval_rank(count)
    assert 2 * binom.cdf(rank - 1, count, 0.5) <= 0.02
    assert 2 * binom.cdf(rank, count, 0.5) > 0.02


def test_seven_samples_are_the_fewest_with_an_interval() -> None:
    assert [interval_rank(count) for count in (6, 7, 10, 20)] == [0, 1, 1, 5]
    assert min(each.fewest_rounds for each in PRECISION.values()) >= 7


@given(samples=st.lists(st.floats(-10, 10), min_size=1, max_size=60), shift=st.floats(-5, 5))
def test_interval_holds_the_median_and_moves_with_the_samples(
    samples: list[float], shift: float
) -> None:
    interval = median_interval(samples)
    assert interval.low <= interval.median == median(samples) <= interval.high
    assert {interval.low, interval.high} <= set(samples)
    moved = median_interval([each + shift for each in samples])
    assert moved.low == pytest.approx(interval.low + shift)
    assert moved.high == pytest.approx(interval.high + shift)


@pytest.mark.parametrize("shape", ["normal", "heavy", "skewed"])
def test_interval_covers_the_true_median_whatever_the_noise(shape: str) -> None:
    rng = np.random.default_rng(7)
    samples = {
        "normal": rng.standard_normal((2_000, 15)),
        "heavy": rng.standard_t(1, (2_000, 15)),
        "skewed": rng.exponential(size=(2_000, 15)) - math.log(2),
    }[shape]
    intervals = [median_interval(each.tolist()) for each in samples]
    covered = sum(each.low <= 0.0 <= each.high for each in intervals) / len(intervals)
    assert 0.975 <= covered < 0.999


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.1])
def test_stopping_on_precision_keeps_the_coverage(noise: float) -> None:
    results = [timed(FakeContest(noise=noise, seed=run)) for run in range(400)]
    covered = sum(each.low <= 0.0 <= each.high for each in results) / len(results)
    assert covered >= 0.94


def test_finds_a_planted_ratio_and_stops_when_it_is_precise() -> None:
    timing = timed(FakeContest(1e-3, 2e-3))
    assert timing.log2_speedup == pytest.approx(1.0, abs=0.03)
    assert timing.low <= timing.log2_speedup <= timing.high
    assert timing.resolved
    assert timing.runtime_s == pytest.approx(1e-3, rel=0.03)
    assert timing.reference_runtime_s == pytest.approx(2e-3, rel=0.03)
    rounds = len(timing.cases[0].log2_ratios)
    assert SCREENING.min_rounds <= rounds < SCREENING.max_rounds


def test_noise_beyond_the_cap_is_unresolved_not_hidden() -> None:
    timing = timed(FakeContest(noise=0.5))
    assert len(timing.cases[0].log2_ratios) == SCREENING.max_rounds
    assert not timing.resolved


def test_more_care_takes_more_rounds_and_gives_a_narrower_interval() -> None:
    precisions = [PRECISION[effort] for effort in ("screening", "normal", "final")]
    timings = [timed(FakeContest(noise=0.015), precision) for precision in precisions]
    rounds = [len(each.cases[0].log2_ratios) for each in timings]
    assert rounds == sorted(set(rounds))
    assert all(each.resolved for each in timings)
    for timing, precision, stated in zip(timings, precisions, (1.03, 1.01, 1.005), strict=True):
        assert 2**precision.half_width_log2 == pytest.approx(stated)
        assert (timing.high - timing.low) / 2 <= precision.half_width_log2
        assert precision.min_rounds >= 20


def test_one_outlier_does_not_move_the_median() -> None:
    class Hiccup(FakeContest):
        def run(self, case: str, calls: int, *, candidate: bool) -> float:
            seconds = super().run(case, calls, candidate=candidate)
            return seconds + (2.0 if candidate and self.staged == 6 else 0.0)

    timing = timed(Hiccup(1e-3, 2e-3, noise=0.0))
    assert timing.log2_speedup == pytest.approx(1.0, abs=1e-3)
    assert min(timing.cases[0].log2_ratios) < -8  # counted, not deleted


def test_short_kernels_are_batched_and_nothing_is_taken_off() -> None:
    contest = FakeContest(20e-6, 80e-6, noise=0.0)
    contest.overhead_s = 20e-6
    timing = timed(contest)
    assert {calls for _, calls in contest.timed(candidate=True)} == {64}
    assert timing.runtime_s == pytest.approx(1300e-6 / 64)
    assert timing.log2_speedup == pytest.approx(math.log2(5140 / 1300))
    assert timing.resolved


def test_a_large_overhead_makes_requests_longer() -> None:
    contest = FakeContest(100e-6, 200e-6, noise=0.0)
    contest.overhead_s = 100e-6
    timed(contest)
    assert {calls for _, calls in contest.timed(candidate=True)} <= {49, 50}


@pytest.mark.parametrize(("reference_s", "true_ratio"), [(50e-6, 1.0), (5e-3, 100.0)])
def test_a_candidate_that_is_served_for_nothing_gains_nothing(
    reference_s: float, true_ratio: float
) -> None:
    """It serves requests by itself, in no time; its slow warm-up allows one call a request."""

    class Server(FakeContest):
        def run(self, case: str, calls: int, *, candidate: bool) -> float:
            seconds = super().run(case, calls, candidate=candidate)
            if not candidate:
                return seconds
            return 20e-3 if self.staged <= 2 else seconds - self.overhead_s

    contest = Server(50e-6, reference_s, noise=0.0)
    contest.overhead_s = 30e-6
    timing = timed(contest)
    assert {calls for _, calls in contest.timed(candidate=True)} == {1}
    assert not timing.resolved
    assert timing.log2_speedup > math.log2(true_ratio)
    assert timing.low == pytest.approx(math.log2(true_ratio))


def test_both_sides_get_the_same_number_of_calls() -> None:
    contest = FakeContest(3e-6, 60e-6)
    timed(contest)
    assert contest.timed(candidate=True) == contest.timed(candidate=False)
    assert {calls for _, calls in contest.timed(candidate=True)} == {64}


def test_a_slow_reference_bounds_the_calls() -> None:
    """Batching for the sake of a quick candidate must not make the reference's requests endless."""
    contest = FakeContest(10e-6, 3e-3, noise=0.0)
    timing = timed(contest)
    assert {calls for _, calls in contest.timed(candidate=False)} == {3}
    assert timing.log2_speedup == pytest.approx(math.log2(9001 / 31))
    slower = FakeContest(10e-6, 50e-3, noise=0.0)
    timed(slower)
    assert {calls for _, calls in slower.timed(candidate=False)} == {1}


def test_the_overhead_is_asked_for_with_as_many_calls() -> None:
    """`idle` has no side: it is the reference's, so that no candidate can inflate it."""
    contest = FakeContest(100e-6, 200e-6, noise=0.0)
    timed(contest)
    assert contest.idled == 9 * [1] + 9 * [20]


def test_a_request_that_is_all_overhead_keeps_the_ratio_finite() -> None:
    contest = FakeContest(1e-12, 1e-12, noise=0.0)
    contest.overhead_s = 1e-3
    timing = timed(contest)
    assert math.isfinite(timing.log2_speedup)
    assert timing.runtime_s > 0.0


def test_hopeless_candidate_is_let_go_early() -> None:
    timing = timed(FakeContest(10e-3, 1e-3))
    assert len(timing.cases[0].log2_ratios) == SCREENING.fewest_rounds
    assert timing.log2_speedup == pytest.approx(-math.log2(10), abs=0.1)


def test_cases_count_by_their_geometric_mean() -> None:
    contest = FakeContest({"small": 1e-3, "large": 1e-3}, {"small": 2e-3, "large": 8e-3}, noise=0.0)
    timing = timed(contest, cases=("small", "large"))
    assert timing.log2_speedup == pytest.approx(2.0, abs=2e-3)
    assert timing.reference_runtime_s == pytest.approx(4e-3, rel=1e-3)
    assert [each.log2_ratios[0] for each in timing.cases] == pytest.approx([1.0, 3.0], abs=3e-3)


def test_pairs_share_inputs_and_come_in_random_abba_blocks() -> None:
    contest = FakeContest(noise=0.5)
    timed(contest)
    pairs = list(zip(contest.journal[::2], contest.journal[1::2], strict=True))
    assert all(first[1:] == second[1:] for first, second in pairs)
    assert all(first[0] is not second[0] for first, second in pairs)
    assert len({staged for _, staged, _ in contest.journal}) == len(pairs)  # each pair its own
    assert contest.settled == [staged for (_, staged, _), _ in pairs]  # and every one is verified
    orders = [first[0] for first, _ in pairs[2:]]
    blocks = list(zip(orders[::2], orders[1::2], strict=True))
    assert set(blocks) == {(True, False), (False, True)}


@pytest.mark.parametrize("fail_at", [1, 2, 5, 12])
def test_first_failure_ends_the_timing(fail_at: int) -> None:
    contest = FakeContest()
    contest.fail_at = fail_at
    with pytest.raises(PlantedError):
        timed(contest)
    assert len(contest.journal) == fail_at


@pytest.mark.parametrize("wrong_at", [1, 2, 3, 9])
def test_outputs_that_do_not_settle_end_the_timing(wrong_at: int) -> None:
    class Wrong(FakeContest):
        def settle(self, case: str, calls: int) -> None:
            if self.staged == wrong_at:
                raise PlantedError
            super().settle(case, calls)

    contest = Wrong()
    with pytest.raises(PlantedError):
        timed(contest)
    assert len(contest.journal) == 2 * wrong_at


def test_an_overhead_that_cannot_be_learnt_ends_the_timing() -> None:
    for fail_at in (1, 9, 10, 18):

        class Deaf(FakeContest):
            def idle(self, case: str, calls: int, fail_at: int = fail_at) -> float:
                super().idle(case, calls)
                if len(self.idled) == fail_at:
                    raise PlantedError
                return self.overhead_s

        with pytest.raises(PlantedError):
            timed(Deaf(100e-6))


def test_deadline_ends_the_timing_unresolved() -> None:
    class Slow(FakeContest):
        def run(self, case: str, calls: int, *, candidate: bool) -> float:
            time.sleep(0.02)
            return super().run(case, calls, candidate=candidate)

    started = time.perf_counter()
    timing = timed(Slow(noise=0.5), deadline=started + 0.3)
    assert 1 < len(timing.cases[0].log2_ratios) < 10
    assert not timing.resolved


def test_what_the_deadline_cut_short_is_no_ones_failure_and_unresolved() -> None:
    class Stalled(FakeContest):
        stalls_after: int

        def run(self, case: str, calls: int, *, candidate: bool) -> float:
            if len(self.journal) == self.stalls_after:
                raise OutOfTime
            return super().run(case, calls, candidate=candidate)

    # Two cases: 8 requests warm up, and a block is 8 more. It breaks off in the third.
    contest = Stalled(noise=1e-6)
    contest.stalls_after = 8 + 2 * 8 + 6
    timing = timed(contest, Precision(min_rounds=20, fewest_rounds=2), cases=("one", "other"))
    assert not timing.resolved
    assert [len(each.log2_ratios) for each in timing.cases] == [4, 4]
    contest = Stalled()
    contest.stalls_after = 5
    with pytest.raises(OutOfTime):
        timed(contest)


def test_enough_seconds_end_the_timing_after_the_least_rounds_only() -> None:
    impatient = Precision(enough_s=0.0)
    timing = timed(FakeContest(noise=0.5), impatient)
    assert len(timing.cases[0].log2_ratios) == impatient.min_rounds


def test_noise_floor_is_what_the_reference_shows_against_itself() -> None:
    quiet, loud = (timed(FakeContest(noise=noise)) for noise in (0.01, 0.2))
    assert 0.0 < noise_floor(quiet) < 0.02 < noise_floor(loud)
    assert noise_floor(quiet) >= abs(quiet.log2_speedup)
