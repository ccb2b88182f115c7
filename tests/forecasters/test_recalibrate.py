from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.distribution import Distribution
from kernelcast.forecasters.recalibrate import Calibration, RecalibratedForecaster
from kernelcast.forecasters.roofline import RooflineForecaster
from kernelcast.testing import (
    ForecasterContract,
    SyntheticBackend,
    make_query,
    synthetic_kernels,
    synthetic_problem,
)
from kernelcast.types import FailureKind, Forecast, Observation


class TestRecalibrated(ForecasterContract):
    def make(self) -> Any:
        return RecalibratedForecaster(of={"name": "roofline"})


def told(mean: float, std: float, p_fail: float = 0.1) -> Forecast:
    return Forecast(
        forecaster="fake",
        anchor_id="anchor",
        anchor_log2_speedup=0.0,
        distribution=Distribution.normal(mean, std),
        failure={FailureKind.WRONG_RESULT: p_fail},
    )


def taught(
    outcomes: Sequence[float | None], std: float, p_fail: float = 0.1, weight: float = 1.0
) -> Calibration:
    calibration = Calibration()
    for outcome in outcomes:
        calibration.add(told(0.0, std, p_fail), outcome, weight)
    calibration.refit()
    return calibration


def test_a_forecaster_that_is_too_sure_is_widened() -> None:
    errors = np.random.default_rng(0).normal(0.0, 0.9, 200)
    density = taught(list(errors), std=0.3).density(Distribution.normal(0.0, 0.3))
    assert density.std() == pytest.approx(0.9, rel=0.3)
    low, high = density.interval(0.8)
    assert np.mean((errors >= low) & (errors <= high)) == pytest.approx(0.8, abs=0.08)


def test_a_bias_is_taken_off() -> None:
    errors = np.random.default_rng(1).normal(-0.6, 0.3, 200)
    density = taught(list(errors), std=0.3).density(Distribution.normal(0.0, 0.3))
    assert density.quantile(0.5) == pytest.approx(-0.6, abs=0.1)


def test_a_good_forecaster_is_left_alone() -> None:
    errors = np.random.default_rng(2).normal(0.0, 0.4, 200)
    calibration = taught(list(errors), std=0.4)
    assert calibration.scale == pytest.approx(1.0, abs=0.2)
    assert abs(calibration.shift) <= 0.05


@given(st.lists(st.floats(-6.0, 6.0), min_size=1, max_size=10))
def test_ten_outcomes_do_not_ruin_it(outcomes: list[float]) -> None:
    calibration = taught(outcomes, std=0.4)
    density = calibration.density(Distribution.normal(0.0, 0.4))
    assert 0.2 <= density.std() <= 1.2
    assert abs(density.quantile(0.5)) <= 0.2


@pytest.mark.parametrize(("claimed", "true"), [(0.05, 0.5), (0.6, 0.1), (0.2, 0.2)])
def test_the_chance_of_failure_follows_the_outcomes(claimed: float, true: float) -> None:
    failed = np.random.default_rng(3).random(300) < true
    outcomes = [None if each else 0.0 for each in failed]
    calibration = taught(outcomes, std=0.3, p_fail=claimed)
    corrected = calibration.failure(
        {FailureKind.CRASH: claimed / 2, FailureKind.TIMEOUT: claimed / 2}
    )
    assert sum(corrected.values()) == pytest.approx(true, abs=0.08)
    assert corrected[FailureKind.CRASH] == corrected[FailureKind.TIMEOUT]


def test_what_was_never_measured_is_not_corrected() -> None:
    calibration = Calibration()
    density = Distribution.normal(0.3, 0.2)
    assert calibration.density(density) == density
    assert calibration.failure({FailureKind.CRASH: 0.2}) == {FailureKind.CRASH: 0.2}


def test_audits_count_for_more_than_what_was_chosen() -> None:
    def scale(seed: int, weight: float) -> float:
        rng = np.random.default_rng(seed)
        calibration = Calibration()
        for index in range(110):
            audit = index % 11 == 0
            outcome = rng.normal(0.0, 0.9) if audit else rng.normal(0.0, 0.3)
            calibration.add(told(0.0, 0.3), float(outcome), weight if audit else 1.0)
        return calibration.scale

    heeded, levelled = (np.mean([scale(seed, w) for seed in range(20)]) for w in (10.0, 1.0))
    assert heeded > 1.2 * levelled


def test_what_a_forecaster_did_before_it_learnt_is_forgotten() -> None:
    rng = np.random.default_rng(5)
    raw, learnt = rng.normal(0.0, 1.2, 60), rng.normal(0.0, 0.3, 60)
    before = taught([float(each) for each in raw], std=0.3)
    after = taught([float(each) for each in (*raw, *learnt)], std=0.3)
    assert before.scale > 2.0
    assert 0.7 < after.scale < 1.4


def test_coverage_is_tracked_when_errors_change() -> None:
    rng = np.random.default_rng(5)
    calibration = Calibration()
    inside = []
    for step in range(400):
        outcome = float(rng.normal(0.0, 0.3 if step < 200 else 0.8))
        low, high = calibration.density(Distribution.normal(0.0, 0.3)).interval(0.8)
        inside.append(low <= outcome <= high)
        calibration.add(told(0.0, 0.3), outcome, 1.0)
    assert np.mean(inside[300:]) == pytest.approx(0.8, abs=0.1)


def test_it_learns_from_observations_alone() -> None:
    """As a resumed run does: nothing was asked, everything is taught."""
    problem, backend = synthetic_problem(), SyntheticBackend()
    observations = []
    for kernel in synthetic_kernels(60, seed=3):
        (forecast,) = RooflineForecaster(spread_log2=0.05).forecast([make_query(kernel, problem)])
        measurement = backend.measure(problem, kernel, 0)
        observations.append(Observation(kernel=kernel, measurement=measurement, forecast=forecast))
    recalibrated = RecalibratedForecaster(RooflineForecaster(spread_log2=0.05))
    query = make_query(synthetic_kernels(1, seed=9)[0], problem)
    (before,) = recalibrated.forecast([query])
    recalibrated.learn(observations)
    (after,) = recalibrated.forecast([query])
    assert after.distribution.std() > 3.0 * before.distribution.std()
    assert after.uncorrected is not None
    assert after.uncorrected.distribution == before.distribution
    assert after.uncorrected.uncorrected is None
    assert math.isclose(sum(after.failure.values()), 1.0 - after.p_ok)
