from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.distribution import Distribution
from kernelcast.forecasters.emulated import EmulatedForecaster
from kernelcast.testing import (
    ForecasterContract,
    SyntheticBackend,
    make_estimate,
    make_query,
    synthetic_kernels,
    synthetic_problem,
)
from kernelcast.types import Evidence, Forecast, Observation, Query

PROBLEM = synthetic_problem()
KERNELS = synthetic_kernels(40)


class TestEmulatedForecaster(ForecasterContract):
    def make(self) -> Any:
        return EmulatedForecaster()


def evidence(*runtimes_s: float) -> Evidence:
    return Evidence(kernel_id="", toolchain="", emulated=tuple(map(make_estimate, runtimes_s)))


def query(candidate_s: float, anchor_s: float = 1e-3) -> Query:
    return make_query(KERNELS[0]).model_copy(
        update={"evidence": evidence(candidate_s), "anchor_evidence": evidence(anchor_s)}
    )


def forecast(asked: Query, forecaster: EmulatedForecaster | None = None) -> Forecast:
    (answer,) = (forecaster or EmulatedForecaster()).forecast([asked])
    return answer


def test_the_ratio_of_the_estimates_is_the_median_but_for_a_tenth() -> None:
    answer = forecast(query(0.25e-3))
    assert answer.distribution.quantile(0.5) == pytest.approx(0.9 * 2.0, abs=0.01)
    assert "4.00x as fast, bound by memory" in answer.rationale
    assert not answer.is_prior


@given(octaves=st.floats(-6.0, 6.0))
def test_swapping_both_kernels_mirrors_the_forecast(octaves: float) -> None:
    there, back = (
        forecast(query(*pair)).distribution
        for pair in ((1e-3 * 2.0**octaves, 1e-3), (1e-3, 1e-3 * 2.0**octaves))
    )
    for level in (0.05, 0.3, 0.5, 0.9):
        assert there.quantile(level) == pytest.approx(-back.quantile(1.0 - level), abs=1e-6)


def test_a_larger_ratio_is_less_sure() -> None:
    widths = [forecast(query(1e-3 / 2.0**octaves)).distribution.std() for octaves in range(4)]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]


def test_several_cases_count_by_their_geometric_mean() -> None:
    assert evidence(1.0, 4.0).estimated_log2_s == pytest.approx(1.0)
    assert evidence().estimated_log2_s is None


@pytest.mark.parametrize("missing", ["evidence", "anchor_evidence"])
def test_without_both_estimates_nothing_is_known(missing: str) -> None:
    for nothing in (None, evidence()):
        answer = forecast(query(1e-3).model_copy(update={missing: nothing}))
        assert answer.is_prior
        assert answer.distribution.std() > 1.5
        assert answer.rationale == "not emulated"


def observations(error_log2: float) -> list[Observation]:
    """Return measured kernels whose estimates are off by so much, up and down in turn."""
    backend = SyntheticBackend()
    lessons = []
    for number, kernel in enumerate(KERNELS):
        measurement = backend.measure(PROBLEM, kernel, 0)
        log2_speedup = measurement.log2_speedup or 0.0
        seconds = 2.0 ** (-log2_speedup + error_log2 * (-1) ** number - 10.0)
        lessons.append(
            Observation(kernel=kernel, measurement=measurement, evidence=evidence(seconds))
        )
    return lessons


def test_the_errors_of_the_run_set_the_width() -> None:
    widths = []
    for error_log2 in (0.02, 1.5):
        forecaster = EmulatedForecaster()
        forecaster.learn(observations(error_log2))
        widths.append(forecast(query(0.5e-3), forecaster).distribution.std())
    assert widths[0] < forecast(query(0.5e-3)).distribution.std() < widths[1]


def test_a_forecast_that_knew_no_estimates_is_moved_by_them() -> None:
    asked = query(0.25e-3)
    plain = Forecast(
        forecaster="any",
        anchor_id=asked.anchor.id,
        anchor_log2_speedup=0.0,
        distribution=Distribution.normal(0.0, 1.0),
        rationale="by the text",
        is_prior=True,
    )
    moved = EmulatedForecaster().reconciled(asked, plain)
    assert 0.7 < moved.distribution.mean() < 1.8
    assert moved.distribution.std() < 1.0
    assert moved.forecaster == "any"
    assert moved.rationale.endswith("by the text")
    assert not moved.is_prior
    unknown = asked.model_copy(update={"evidence": None})
    assert EmulatedForecaster().reconciled(unknown, plain) == plain


def test_a_kernel_as_fast_as_its_anchor_is_a_tie_with_some_width() -> None:
    density = forecast(query(1e-3)).distribution
    assert density.quantile(0.5) == pytest.approx(0.0, abs=1e-9)
    assert 0.1 < density.quantile(0.9) < 1.0
    assert math.isclose(density.quantile(0.9), -density.quantile(0.1), abs_tol=1e-6)
