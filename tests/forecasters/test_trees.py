from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kernelcast.canonical import canonical_parameters
from kernelcast.forecasters.trees import DeviceTimes, TreesForecaster
from kernelcast.scoring import crps, spearman
from kernelcast.testing import (
    ForecasterContract,
    SyntheticBackend,
    make_query,
    synthetic_kernels,
    synthetic_problem,
)
from kernelcast.types import Failure, FailureKind, Forecast, Kernel, Observation

PROBLEM = synthetic_problem()
BACKEND = SyntheticBackend()


class TestTreesForecaster(ForecasterContract):
    def make(self) -> Any:
        return TreesForecaster()


def observe(kernels: Sequence[Kernel]) -> list[Observation]:
    """What the synthetic backend measures of them."""
    return [
        Observation(kernel=kernel, measurement=BACKEND.measure(PROBLEM, kernel, 0))
        for kernel in kernels
    ]


def timed(kernels: Sequence[Kernel]) -> list[Observation]:
    return [each for each in observe(kernels) if each.measurement.failure is None]


def failed(kernel: Kernel, kind: FailureKind) -> Observation:
    (observation,) = observe([kernel])
    failure = Failure(kind=kind, message="made up")
    measurement = observation.measurement.model_copy(update={"timing": None, "failure": failure})
    return Observation(kernel=kernel, measurement=measurement)


def taught(observations: Sequence[Observation]) -> TreesForecaster:
    forecaster = TreesForecaster()
    forecaster.learn(observations)
    return forecaster


def ask(forecaster: TreesForecaster, kernels: Sequence[Kernel]) -> list[Forecast]:
    return forecaster.forecast([make_query(kernel, PROBLEM) for kernel in kernels])


@pytest.fixture(scope="module")
def held_out() -> list[Observation]:
    return timed(synthetic_kernels(400, seed=1)[200:])


@pytest.fixture(scope="module")
def forecaster() -> TreesForecaster:
    """Taught 150 kernels or so, none of them held out."""
    return taught(timed(synthetic_kernels(400, seed=1)[:160]))


def truth(observation: Observation) -> float:
    value = observation.measurement.log2_speedup
    assert value is not None
    return value


def mean_crps(forecaster: TreesForecaster, held_out: Sequence[Observation]) -> float:
    forecasts = ask(forecaster, [each.kernel for each in held_out])
    scores = [crps(f.distribution, truth(o)) for f, o in zip(forecasts, held_out, strict=True)]
    return float(np.mean(scores))


def test_learns(forecaster: TreesForecaster, held_out: list[Observation]) -> None:
    prior = mean_crps(TreesForecaster(), held_out)
    # Five lessons beat the prior too, and more lessons beat five.
    few = mean_crps(taught(timed(synthetic_kernels(400, seed=1)[:12])), held_out)
    assert mean_crps(forecaster, held_out) < 0.6 * few < 0.6 * prior


def test_is_about_as_sure_as_it_should_be(
    forecaster: TreesForecaster, held_out: list[Observation]
) -> None:
    intervals = [
        forecast.distribution.interval(0.8)
        for forecast in ask(forecaster, [each.kernel for each in held_out])
    ]
    inside = [low <= truth(o) <= high for (low, high), o in zip(intervals, held_out, strict=True)]
    assert 0.6 <= np.mean(inside) <= 0.97


def test_is_less_sure_away_from_what_it_knows(
    forecaster: TreesForecaster, held_out: list[Observation]
) -> None:
    known = [each.kernel for each in timed(synthetic_kernels(400, seed=1)[:160])]
    unknown = [each.kernel for each in held_out]
    near, far = (
        np.mean([forecast.distribution.std() for forecast in ask(forecaster, kernels)])
        for kernels in (known, unknown)
    )
    assert far > 1.1 * near


def test_before_the_third_lesson_it_is_wide_about_the_mean() -> None:
    lessons = timed(synthetic_kernels(20, seed=2))[:2]
    (forecast,) = ask(taught(lessons), [synthetic_kernels(1, seed=3)[0]])
    density = forecast.distribution
    assert density.quantile(0.5) == pytest.approx(np.mean([truth(o) for o in lessons]), abs=0.01)
    assert density.cdf(density.quantile(0.5) + 1.5) == pytest.approx(0.841, abs=0.01)


def test_without_a_measurement_here_or_elsewhere_it_is_a_prior() -> None:
    kernels = synthetic_kernels(3, seed=6)
    parameters = kernels[0].parameters
    assert parameters is not None
    known = DeviceTimes("another", {canonical_parameters(parameters): 1.0})
    assert all(each.is_prior for each in ask(TreesForecaster(), kernels))
    assert not any(each.is_prior for each in ask(TreesForecaster(lambda *_: [known]), kernels))
    assert not any(each.is_prior for each in ask(taught(observe(kernels[:1])), kernels))


def test_a_forecast_is_seen_from_its_anchor(forecaster: TreesForecaster) -> None:
    (kernel,) = synthetic_kernels(1, seed=4)
    here, there = forecaster.forecast(
        [make_query(kernel, PROBLEM, anchor_log2_speedup=anchor) for anchor in (0.0, 2.0)]
    )
    assert there.distribution.mean() == pytest.approx(here.distribution.mean() - 2.0)
    assert there.against_reference().mean() == pytest.approx(here.against_reference().mean())


def test_learns_what_fails() -> None:
    kernels = synthetic_kernels(120, seed=5)
    fails = [bool(kernel.parameters and kernel.parameters["C"] == 8) for kernel in kernels]
    lessons = [
        failed(kernel, FailureKind.CRASH) if bad else good
        for kernel, bad, good in zip(kernels, fails, observe(kernels), strict=True)
        if bad or good.measurement.failure is None
    ]
    unseen = synthetic_kernels(200, seed=5)[120:]
    forecasts = ask(taught(lessons), unseen)
    rates = {
        bad: np.mean(
            [
                1.0 - forecast.p_ok
                for kernel, forecast in zip(unseen, forecasts, strict=True)
                if kernel.parameters and (kernel.parameters["C"] == 8) is bad
            ]
        )
        for bad in (False, True)
    }
    # An average over neighbours: it tells them apart, but is far from sure.
    assert rates[True] > 0.4
    assert rates[True] > 1.6 * rates[False]
    assert set(forecasts[0].failure) == {FailureKind.CRASH}


def test_failures_share_out_by_their_causes() -> None:
    kernels = synthetic_kernels(4, seed=6)
    kinds = [FailureKind.CRASH, FailureKind.TIMEOUT, FailureKind.TIMEOUT, FailureKind.TIMEOUT]
    lessons = [failed(kernel, kind) for kernel, kind in zip(kernels, kinds, strict=True)]
    (forecast,) = ask(taught(lessons), synthetic_kernels(1, seed=7))
    assert 0.3 < 1.0 - forecast.p_ok < 0.7
    assert forecast.failure[FailureKind.TIMEOUT] == pytest.approx(
        3 * forecast.failure[FailureKind.CRASH]
    )


def test_a_constant_speed_does_not_make_it_certain() -> None:
    lessons = timed(synthetic_kernels(40, seed=8))
    first = lessons[0].measurement
    same = [Observation(kernel=each.kernel, measurement=first.model_copy()) for each in lessons]
    (forecast,) = ask(taught(same), synthetic_kernels(1, seed=9))
    assert forecast.distribution.std() > 0.01


def test_what_ran_on_other_devices_orders_what_was_never_measured_here() -> None:
    kernels = synthetic_kernels(60, seed=14)
    there = {
        canonical_parameters(each.kernel.parameters or {}): None
        if each.measurement.log2_speedup is None
        else -each.measurement.log2_speedup
        for each in observe(kernels)
    }
    known = [DeviceTimes(device="other", log2_runtime=there)]
    forecaster = TreesForecaster(elsewhere=lambda _problem, _device: known)
    forecasts = ask(forecaster, kernels)
    actual = [each.measurement.log2_speedup for each in observe(kernels)]
    pairs = [
        (forecast.distribution.quantile(0.5), speedup)
        for forecast, speedup in zip(forecasts, actual, strict=True)
        if speedup is not None
    ]
    assert spearman(*zip(*pairs, strict=True)) > 0.9
    assert "on other" in forecasts[0].rationale
    failing = [f.p_ok for f, speedup in zip(forecasts, actual, strict=True) if speedup is None]
    running = [f.p_ok for f, speedup in zip(forecasts, actual, strict=True) if speedup is not None]
    assert max(failing) < min(running)


def test_a_reason_names_the_nearest_measured_kernel() -> None:
    (lesson,) = timed(synthetic_kernels(20, seed=2))[:1]
    (forecast,) = ask(taught([lesson]), [lesson.kernel])
    assert forecast.rationale == f"0 parameters from one that ran at {2 ** truth(lesson):.2f}x"
