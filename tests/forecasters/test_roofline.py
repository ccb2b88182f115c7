from __future__ import annotations

import math
from typing import Any

import pytest

from kernelcast.devices import roofline_s
from kernelcast.forecasters.roofline import RooflineForecaster
from kernelcast.testing import (
    FAKE_DEVICE,
    ForecasterContract,
    make_query,
    synthetic_kernels,
    synthetic_problem,
)
from kernelcast.types import Case, Forecast, Problem

PROBLEM = synthetic_problem()
(KERNEL,) = synthetic_kernels(1)


class TestRooflineForecaster(ForecasterContract):
    def make(self) -> Any:
        return RooflineForecaster()


def forecast(octaves_of_room: float, problem: Problem = PROBLEM, **options: float) -> Forecast:
    """Of a kernel whose anchor runs so many octaves above the roofline."""
    bound_s = roofline_s(PROBLEM, FAKE_DEVICE)
    assert bound_s is not None
    query = make_query(KERNEL, problem).model_copy(
        update={"anchor_runtime_s": bound_s * 2.0**octaves_of_room}
    )
    (answer,) = RooflineForecaster(**options).forecast([query])  # type: ignore[arg-type]
    return answer


def test_the_bound_is_what_moves_the_bytes() -> None:
    # 4,096 floats in and out at 1e11 bytes/s; 4,096 operations at 1e12 take a tenth of that.
    assert roofline_s(PROBLEM, FAKE_DEVICE) == pytest.approx(8 * 4096 / 1e11)


@pytest.mark.parametrize("room", [0.2, 1.0, 2.5])
def test_nothing_beats_the_roofline(room: float) -> None:
    density = forecast(room).distribution
    assert density.probability_above(room + 0.05) < 0.02
    assert density.probability_above(room - 0.1) > 0.005


def test_less_room_means_less_hope() -> None:
    means = [forecast(room).distribution.mean() for room in (0.0, 0.5, 1.0, 4.0)]
    assert means == sorted(means)
    assert means[0] < -0.3
    assert means[-1] == pytest.approx(0.0, abs=0.02)


def test_an_anchor_faster_than_the_bound_is_believed() -> None:
    # Peaks are nominal: a measured time below them shows them wrong, not the time.
    assert forecast(-3.0).distribution == forecast(0.0).distribution


def test_with_room_to_spare_it_is_a_normal_of_the_stated_spread() -> None:
    density = forecast(20.0, spread_log2=0.7).distribution
    assert density.std() == pytest.approx(0.7, rel=0.02)
    assert density.cdf(0.7) == pytest.approx(0.8413, abs=0.01)


def test_without_a_bound_it_is_a_wide_guess() -> None:
    untimed = PROBLEM.model_copy(
        update={"cases": (Case(name="check", dimensions={"N": 64}, timed=False),)}
    )
    assert roofline_s(untimed, FAKE_DEVICE) is None
    assert forecast(0.0, untimed).distribution.std() == pytest.approx(1.0, rel=0.02)


def test_a_failure_is_thought_possible() -> None:
    answer = forecast(1.0)
    assert math.isclose(answer.p_ok, 0.95)
