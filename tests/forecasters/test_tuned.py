from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from kernelcast.canonical import canonical_parameters
from kernelcast.forecasters import _tuned
from kernelcast.forecasters._encoding import Encoding
from kernelcast.forecasters._prior import Prior, Target
from kernelcast.forecasters._tuned import DeviceTimes, TunedForecaster
from kernelcast.testing import (
    SyntheticBackend,
    make_estimate,
    make_query,
    synthetic_kernels,
    synthetic_problem,
)
from kernelcast.types import Evidence, Failure, FailureKind, Forecast, Kernel, Observation

PROBLEM = synthetic_problem()
BARE = PROBLEM.model_copy(update={"template": None})
KERNELS = synthetic_kernels(400, seed=1)


@cache
def observations() -> list[Observation]:
    backend = SyntheticBackend()
    return [
        Observation(kernel=kernel, measurement=backend.measure(PROBLEM, kernel, 0))
        for kernel in KERNELS
    ]


def failed(observation: Observation) -> Observation:
    failure = Failure(kind=FailureKind.CRASH, message="made up")
    measurement = observation.measurement.model_copy(update={"timing": None, "failure": failure})
    return observation.model_copy(update={"measurement": measurement})


def ask(forecaster: TunedForecaster, first: int, *, template: bool = True) -> list[Forecast]:
    problem = PROBLEM if template else BARE
    return forecaster.forecast([make_query(kernel, problem) for kernel in KERNELS[first:][:12]])


def table(count: int) -> list[DeviceTimes]:
    """Return the times of some kernels on another device."""
    times = {
        canonical_parameters(lesson.kernel.parameters or {}): None
        if lesson.measurement.log2_speedup is None
        else 0.5 - lesson.measurement.log2_speedup
        for lesson in observations()[::-1][:count]
    }
    return [DeviceTimes("other", times)]


# A kernel's number, and True if it fails whatever it did before. Numbers recur.
LESSONS = st.lists(st.tuples(st.integers(0, 90), st.booleans() | st.just(value=False)), max_size=70)


@pytest.mark.parametrize("known", [0, 330])
@pytest.mark.parametrize("estimated", [True, False])
@pytest.mark.parametrize("template", [True, False])
@settings(max_examples=6, deadline=None)
@given(lessons=LESSONS, cuts=st.sets(st.integers(0, 70), max_size=6), data=st.data())
def test_forecasts_depend_on_the_order_of_lessons_alone(
    known: int,
    estimated: bool,
    template: bool,
    lessons: list[tuple[int, bool]],
    cuts: set[int],
    data: st.DataObject,
) -> None:
    taught = [
        failed(observations()[number]) if fails else observations()[number]
        for number, fails in lessons
    ]
    if estimated:
        taught = [with_estimate(lesson) for lesson in taught]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("_MOST_ROWS", 24), ("_ROWS_KEPT", 16), ("_TYPICAL", 2)):
            patch.setattr(_tuned, name, value)
        patch.setattr(_tuned, "_MOST_ADDED", 5)
        whole, parts = (TunedForecaster(lambda *_: table(known)) for _ in range(2))
        whole.learn(taught)
        before = 0
        for cut in [*sorted(cut for cut in cuts if cut < len(taught)), len(taught)]:
            parts.learn(taught[before:cut])
            before = cut
            if data.draw(st.booleans()):
                ask(parts, data.draw(st.integers(0, 300)), template=template)
        assert ask(whole, 60, template=template) == ask(parts, 60, template=template)
        assert ask(whole, 60, template=template) == ask(parts, 60, template=template)


def estimate_of(kernel: Kernel) -> Evidence:
    """Return an estimate that orders the kernels almost as their times do, for two of three."""
    log2_speedup = SyntheticBackend().measure(PROBLEM, kernel, 0).log2_speedup or 0.0
    number = int(kernel.id[:6], 16)
    error = 0.2 * math.sin(number)
    estimates = (make_estimate(2.0 ** (-9.0 - log2_speedup + error)),) if number % 3 else ()
    return Evidence(kernel_id=kernel.id, toolchain="", emulated=estimates)


def with_estimate(observation: Observation) -> Observation:
    return observation.model_copy(update={"evidence": estimate_of(observation.kernel)})


def ask_with_estimates(forecaster: TunedForecaster, kernels: Sequence[Kernel]) -> list[Forecast]:
    anchor = Evidence(kernel_id="", toolchain="", emulated=(make_estimate(2.0**-9),))
    queries = [
        make_query(kernel).model_copy(
            update={"evidence": estimate_of(kernel), "anchor_evidence": anchor}
        )
        for kernel in kernels
    ]
    return forecaster.forecast(queries)


@pytest.mark.parametrize("lessons", [0, 2, 4, 8])
def test_estimates_order_configurations_from_the_start(lessons: int) -> None:
    """Cold, the order of unseen configurations is a guess; by estimates, it is nearly right."""
    unseen = [lesson for lesson in observations()[200:300] if lesson.measurement.timing]
    unseen = [lesson for lesson in unseen if estimate_of(lesson.kernel).emulated][:40]
    truth = [lesson.measurement.log2_speedup or 0.0 for lesson in unseen]
    forecaster, cold = TunedForecaster(), TunedForecaster()
    forecaster.learn([with_estimate(lesson) for lesson in observations()[:lessons]])
    cold.learn(observations()[:lessons])
    kernels = [lesson.kernel for lesson in unseen]
    by_estimates = medians(ask_with_estimates(forecaster, kernels))
    by_none = medians(cold.forecast([make_query(kernel) for kernel in kernels]))
    assert spearmanr(by_estimates, truth)[0] > 0.9
    assert np.std(by_none) == 0.0 or spearmanr(by_none, truth)[0] < 0.9
    if not lessons:
        # The anchor is no configuration: its estimate sets the level.
        assert by_estimates == pytest.approx(truth, abs=0.25)


def medians(forecasts: Sequence[Forecast]) -> list[float]:
    return [forecast.distribution.quantile(0.5) for forecast in forecasts]


def test_it_is_about_as_good_as_a_full_fit() -> None:
    lessons, unseen = observations()[:150], observations()[388:]
    forecaster = TunedForecaster()
    forecaster.learn(lessons)
    configurations = [each.kernel.parameters or {} for each in (*lessons, *unseen)]
    assert PROBLEM.template is not None
    domain = PROBLEM.template.parameters
    _, features = Encoding.of(configurations, domain).encode(configurations)
    prior = Prior.cold(features)
    speedups = [lesson.measurement.log2_speedup for lesson in lessons]
    timed = np.array([row for row, speedup in enumerate(speedups) if speedup is not None])
    target = Target.of(np.array([-(speedups[row] or 0.0) for row in timed]), prior, timed)
    model = prior.model()
    model.fit(timed, target.values, 50)
    model.condition(timed)
    model.look(np.arange(len(lessons), len(configurations)))
    predicted = target.predictions(model, prior.mean[len(lessons) :], np.ones(len(unseen)), 1.0)
    assert medians(ask(forecaster, 388)) == pytest.approx(-predicted.log2_runtime, abs=0.1)


def test_the_rows_are_bounded_and_the_fastest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tuned, "_MOST_ROWS", 64)
    monkeypatch.setattr(_tuned, "_ROWS_KEPT", 48)
    monkeypatch.setattr(_tuned, "_MOST_ADDED", 16)
    forecaster = TunedForecaster()
    speedups = {}
    for lesson in observations()[:380]:
        forecaster.learn([lesson])
        speedups[lesson.kernel.id] = lesson.measurement.log2_speedup or -np.inf
        ask(forecaster, 380)
        assert forecaster._model is not None
        assert len(forecaster._model._rows) <= 64 + 16
    kept = {row.log2_runtime for row in forecaster._model._rows.values()}  # type: ignore[union-attr]
    assert {-speedup for speedup in sorted(speedups.values())[-10:]} <= kept


def test_learning_leaves_the_work_to_the_next_forecast() -> None:
    forecaster = TunedForecaster()
    ask(forecaster, 0)
    model = forecaster._model
    assert model is not None
    forecaster.learn(observations()[:50])
    assert not model._rows


def test_another_problem_gets_a_model_of_its_own() -> None:
    forecaster, fresh = TunedForecaster(), TunedForecaster()
    for each in (forecaster, fresh):
        each.learn(observations()[:30])
    ask(forecaster, 40)
    assert ask(forecaster, 40, template=False) == ask(fresh, 40, template=False)


def test_a_configuration_that_no_other_device_has_run_is_guessed_from_near_ones() -> None:
    forecaster = TunedForecaster(lambda *_: table(300))
    forecasts = ask(forecaster, 0)
    actual = [lesson.measurement.log2_speedup for lesson in observations()[:12]]
    pairs = [
        (median, speedup)
        for median, speedup in zip(medians(forecasts), actual, strict=True)
        if speedup is not None
    ]
    guessed, speedups = zip(*pairs, strict=True)
    assert np.corrcoef(guessed, speedups)[0, 1] > 0.7
    assert all("on other" not in forecast.rationale for forecast in forecasts)


def test_another_device_that_misleads_is_dropped() -> None:
    (right,) = table(400)
    wrong = DeviceTimes("liar", {key: time and -time for key, time in right.log2_runtime.items()})
    misled, cold = TunedForecaster(lambda *_: [wrong]), TunedForecaster()
    for forecaster in (misled, cold):
        forecaster.learn(observations()[:60])
    actual = [lesson.measurement.log2_speedup or math.nan for lesson in observations()[60:][:12]]
    errors = [
        np.nanmean(np.abs(np.array(medians(ask(forecaster, 60))) - actual))
        for forecaster in (misled, cold)
    ]
    assert errors[0] < 1.3 * errors[1]
