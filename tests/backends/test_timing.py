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
    NOISE_FLOOR,
    SCREENING,
    Precision,
    interval_rank,
    median_interval,
    noise_floor,
    time_pairs,
)
from kernelcast.types import Failure, FailureKind, Timing


class FakeRunner:
    """A kernel of known speed with log-normal noise and a known overhead a request."""

    def __init__(
        self,
        call_s: float | dict[str, float],
        noise: float = 0.02,
        overhead_s: float = 50e-6,
        fail_at: int | None = None,
        seed: int = 0,
        journal: list[tuple[str, tuple[int, ...]]] | None = None,
    ) -> None:
        self.call_s = call_s
        self.noise = noise
        self.overhead_s = overhead_s
        self.fail_at = fail_at
        self.rng = np.random.default_rng(seed)
        self.journal = [] if journal is None else journal
        self.runs = 0
        self.name = f"{id(self)}"

    def run(self, case: str, inputs: Sequence[int]) -> float | Failure:
        self.runs += 1
        self.journal.append((self.name, tuple(inputs)))
        if self.runs == self.fail_at:
            return Failure(kind=FailureKind.CRASH, message="planted")
        call_s = self.call_s if isinstance(self.call_s, float) else self.call_s[case]
        noise = float(np.exp(self.noise * self.rng.standard_normal()))
        return self.overhead_s + len(inputs) * call_s * noise

    def idle(self, case: str, calls: int) -> float:
        return self.overhead_s

    def most_calls(self, case: str) -> int:
        return 64


def timed(
    candidate: FakeRunner,
    reference: FakeRunner,
    precision: Precision = SCREENING,
    cases: Sequence[str] = ("main",),
    deadline: float = math.inf,
    seed: int = 0,
) -> Timing:
    rng = np.random.default_rng(seed)
    outcome = time_pairs(dict.fromkeys(cases, 3), candidate, reference, rng, precision, deadline)
    assert isinstance(outcome, Timing)
    return outcome


@pytest.mark.parametrize("count", range(1, 80))
def test_interval_rank_is_the_exact_order_statistic_of_the_sign_test(count: int) -> None:
    rank = interval_rank(count)
    assert 2 * binom.cdf(rank - 1, count, 0.5) <= 0.05
    assert 2 * binom.cdf(rank, count, 0.5) > 0.05


def test_six_samples_are_the_fewest_with_an_interval() -> None:
    assert [interval_rank(count) for count in (5, 6, 10, 20)] == [0, 1, 2, 6]


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
    assert 0.95 <= covered < 0.995


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.1])
def test_stopping_on_precision_keeps_the_coverage(noise: float) -> None:
    results = [
        timed(FakeRunner(1e-3, noise, seed=2 * run), FakeRunner(1e-3, noise, seed=2 * run + 1))
        for run in range(400)
    ]
    covered = sum(each.low <= 0.0 <= each.high for each in results) / len(results)
    assert covered >= 0.93  # 0.94 less what 400 runs cannot tell apart


def test_finds_a_planted_ratio_and_stops_when_it_is_precise() -> None:
    timing = timed(FakeRunner(1e-3), FakeRunner(2e-3, seed=1))
    assert timing.log2_speedup == pytest.approx(1.0, abs=0.03)
    assert timing.low <= timing.log2_speedup <= timing.high
    assert timing.resolved
    assert timing.runtime_s == pytest.approx(1e-3, rel=0.03)
    assert timing.reference_runtime_s == pytest.approx(2e-3, rel=0.03)
    rounds = len(timing.cases[0].log2_ratios)
    assert SCREENING.min_rounds <= rounds < SCREENING.max_rounds


def test_noise_beyond_the_cap_is_unresolved_not_hidden() -> None:
    timing = timed(FakeRunner(1e-3, noise=0.5), FakeRunner(1e-3, noise=0.5, seed=1))
    assert len(timing.cases[0].log2_ratios) == SCREENING.max_rounds
    assert not timing.resolved


def test_one_outlier_does_not_move_the_median() -> None:
    reference = FakeRunner(2e-3, noise=0.0)
    candidate = FakeRunner(1e-3, noise=0.0)
    slow = iter([1e-3] * 5 + [1.0] + [1e-3] * 100)
    candidate.call_s = {"main": 0.0}
    plain = candidate.run

    def run(case: str, inputs: Sequence[int]) -> float | Failure:
        candidate.call_s = {"main": next(slow)}
        return plain(case, inputs)

    candidate.run = run  # type: ignore[method-assign]
    timing = timed(candidate, reference)
    assert timing.log2_speedup == pytest.approx(1.0)
    assert min(timing.cases[0].log2_ratios) < -8  # counted, not deleted


def test_short_kernels_are_batched_and_the_overhead_is_taken_off() -> None:
    candidate, reference = FakeRunner(10e-6, noise=0.01), FakeRunner(40e-6, noise=0.01, seed=1)
    timing = timed(candidate, reference)
    assert timing.log2_speedup == pytest.approx(2.0, abs=0.05)
    assert timing.runtime_s == pytest.approx(10e-6, rel=0.03)
    assert {len(inputs) for _, inputs in candidate.journal[2:]} <= {29, 30, 31}


def test_hopeless_candidate_is_let_go_early() -> None:
    timing = timed(FakeRunner(10e-3), FakeRunner(1e-3, seed=1))
    assert len(timing.cases[0].log2_ratios) == SCREENING.fewest_rounds
    assert timing.log2_speedup == pytest.approx(-math.log2(10), abs=0.1)


def test_cases_count_by_their_geometric_mean() -> None:
    cases = ("small", "large")
    candidate = FakeRunner({"small": 1e-3, "large": 1e-3}, noise=0.0)
    reference = FakeRunner({"small": 2e-3, "large": 8e-3}, noise=0.0)
    timing = timed(candidate, reference, cases=cases)
    assert timing.log2_speedup == pytest.approx(2.0)
    assert timing.reference_runtime_s == pytest.approx(4e-3)
    assert [each.log2_ratios[0] for each in timing.cases] == pytest.approx([1.0, 3.0])


def test_pairs_share_inputs_and_come_in_random_abba_blocks() -> None:
    journal: list[tuple[str, tuple[int, ...]]] = []
    candidate = FakeRunner(1e-3, noise=0.5, journal=journal)
    reference = FakeRunner(1e-3, noise=0.5, seed=1, journal=journal)
    timed(candidate, reference)
    calls = journal[4:]  # after two warm-up runs of each
    pairs = list(zip(calls[::2], calls[1::2], strict=True))
    assert all(first[1] == second[1] for first, second in pairs)
    orders = [first[0] == candidate.name for first, _ in pairs]
    blocks = list(zip(orders[::2], orders[1::2], strict=True))
    assert set(blocks) == {(True, False), (False, True)}
    assert len({inputs for _, inputs in calls}) == 3


@pytest.mark.parametrize("fail_at", [1, 2, 5, 12])
def test_first_failure_ends_the_timing(fail_at: int) -> None:
    outcome = time_pairs(
        {"main": 3},
        FakeRunner(1e-3, fail_at=fail_at),
        FakeRunner(1e-3, seed=1),
        np.random.default_rng(0),
    )
    assert outcome == Failure(kind=FailureKind.CRASH, message="planted")


def test_deadline_ends_the_timing_unresolved() -> None:
    class SlowRunner(FakeRunner):
        def run(self, case: str, inputs: Sequence[int]) -> float | Failure:
            time.sleep(0.02)
            return super().run(case, inputs)

    started = time.perf_counter()
    timing = timed(
        SlowRunner(1e-3, noise=0.5), SlowRunner(1e-3, noise=0.5, seed=1), deadline=started + 0.3
    )
    assert 1 < len(timing.cases[0].log2_ratios) < 10
    assert not timing.resolved


def test_enough_seconds_end_the_timing_after_the_least_rounds_only() -> None:
    impatient = Precision(enough_s=0.0)
    timing = timed(
        FakeRunner(1e-3, noise=0.5), FakeRunner(1e-3, noise=0.5, seed=1), precision=impatient
    )
    assert len(timing.cases[0].log2_ratios) == impatient.min_rounds


def test_noise_floor_is_what_the_reference_shows_against_itself() -> None:
    quiet = timed(FakeRunner(1e-3, 0.01), FakeRunner(1e-3, 0.01, seed=1), NOISE_FLOOR)
    loud = timed(FakeRunner(1e-3, 0.2), FakeRunner(1e-3, 0.2, seed=1), NOISE_FLOOR)
    assert 0.0 < noise_floor(quiet) < 0.02 < noise_floor(loud)
    assert noise_floor(quiet) >= abs(quiet.log2_speedup)
