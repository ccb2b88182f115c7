from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.distribution import Distribution
from kernelcast.errors import SetupError
from kernelcast.judge.ranking import Ranking, _Stack
from kernelcast.testing import make_kernel
from kernelcast.types import FailureKind, Forecast


def forecast(mean: float, std: float, p_fail: float = 0.0) -> Forecast:
    return Forecast(
        forecaster="fake",
        anchor_id="seed",
        anchor_log2_speedup=1.0,
        distribution=Distribution.normal(mean, std),
        failure={FailureKind.CRASH: p_fail},
    )


def ranking(*forecasts: Forecast) -> Ranking:
    labels = [f"k{index}" for index in range(len(forecasts))]
    return Ranking.of(labels, [make_kernel(label) for label in labels], forecasts)


def order(found: Ranking) -> list[str]:
    return [each.label for each in found.members]


def test_the_fastest_is_first_and_failure_counts_against_a_kernel() -> None:
    assert order(ranking(forecast(0, 0.2), forecast(1, 0.2), forecast(-1, 0.2))) == [
        "k1",
        "k0",
        "k2",
    ]
    assert order(ranking(forecast(1, 0.2, p_fail=0.9), forecast(1, 0.2))) == ["k1", "k0"]


def test_of_equal_centres_the_uncertain_one_is_likelier_the_fastest() -> None:
    pool = [forecast(0, 0.1)] * 9 + [forecast(0, 1.0)]
    assert order(ranking(*pool))[0] == "k9"


pools = st.lists(
    st.builds(forecast, st.floats(-3, 3), st.floats(0.05, 2), st.floats(0, 1)),
    min_size=1,
    max_size=30,
)


@given(pools)
def test_chances_sum_to_one_and_gains_fall_down_the_list(pool: list[Forecast]) -> None:
    members = ranking(*pool).members
    gains = [member.gain for member in members if not member.is_ruled_out]
    assert sorted(gains, reverse=True) == gains
    if any(each.p_ok > 1e-9 for each in pool):
        assert sum(member.chance for member in members) == pytest.approx(1.0)


@given(pools, st.floats(0.01, 0.99))
def test_a_cut_keeps_its_word(pool: list[Forecast], miss: float) -> None:
    found = ranking(*pool)
    cut = found.cut(miss=miss)
    kept = sum(each.chance for each in found.members[: cut.count])
    assert kept == pytest.approx(cut.chance)
    total = sum(each.chance for each in found.members)
    assert kept >= (1.0 - miss) * total - 1e-9 or cut.count == len(pool)
    if cut.count > 1:
        assert sum(each.chance for each in found.members[: cut.count - 1]) < 1.0 - miss + 1e-9


def test_the_stated_chance_is_about_right_for_independent_forecasts() -> None:
    """Drawn from the forecasts, the fastest is within the cut about as often as it says."""
    rng = np.random.default_rng(0)
    centres, widths = rng.normal(size=200), rng.uniform(0.1, 0.6, size=200)
    found = ranking(*map(forecast, centres.tolist(), widths.tolist()))
    cut = found.cut(miss=0.1)
    at = [int(each.label[1:]) for each in found.members[: cut.count]]
    draws = centres + widths * rng.normal(size=(4000, 200))
    inside = np.isin(draws.argmax(axis=1), at).mean()
    assert 0.85 <= inside <= 0.97
    assert cut.count < 60


def test_a_share_is_rounded_up() -> None:
    cut = ranking(*[forecast(0, 1)] * 11).cut(share=0.1)
    assert cut.count == 2
    assert "0.1 of 11" in cut.reason


def test_an_empty_pool_and_wrong_targets() -> None:
    empty = ranking()
    assert empty.members == ()
    assert empty.cut(share=0.1).count == 0
    for target in ({}, {"share": 0.1, "miss": 0.1}, {"share": 0.0}, {"miss": 1.0}):
        with pytest.raises(SetupError):
            ranking(forecast(0, 1)).cut(**target)


def test_what_is_ruled_out_comes_last_and_is_not_advised() -> None:
    broken = forecast(5, 0.1, p_fail=1.0)
    copy = forecast(4, 0.1).model_copy(update={"objection": "nothing has changed"})
    found = ranking(broken, copy, forecast(-3, 0.1), forecast(-30, 0.1))
    assert order(found) == ["k2", "k3", "k1", "k0"]
    assert [member.is_ruled_out for member in found.members] == [False, False, True, True]
    assert [member.chance for member in found.members[2:]] == [0.0, 0.0]
    assert found.cut(share=1.0).count == 2
    none = ranking(broken, copy).cut(miss=0.05)
    assert (none.count, none.chance) == (0, 0.0)
    assert "none of them" in none.reason


def test_gains_are_those_of_the_forecasts() -> None:
    """Distributions of several lengths, with and without mass at the level."""
    forecasts = [
        Forecast(
            forecaster="f",
            anchor_id="a",
            anchor_log2_speedup=shift,
            distribution=distribution,
            failure={FailureKind.CRASH: chance},
        )
        for shift, chance, distribution in (
            (0.0, 0.1, Distribution.normal(0.5, 0.3)),
            (1.0, 0.0, Distribution(knots=(-1.0, 0.0, 2.0), cdf_values=(0.0, 0.5, 1.0))),
            (0.0, 0.5, Distribution(knots=(3.0, 3.5), cdf_values=(0.0, 1.0))),
            (-4.0, 0.0, Distribution.normal(0.0, 0.1)),
        )
    ]
    kernels = [make_kernel(f"int k{number};") for number in range(len(forecasts))]
    members = Ranking.of(["w", "x", "y", "z"], kernels, forecasts).members
    ratios = []
    for member in members:
        density = member.forecast.against_reference()
        level = 1.0
        assert _Stack([density]).survival(level) == pytest.approx(density.probability_above(level))
        assert _Stack([density, Distribution.normal(0, 1)]).expected_improvement(level)[
            0
        ] == pytest.approx(density.expected_improvement(level))
        ratios.append(member.gain)
    assert ratios == sorted(ratios, reverse=True)
    # One kernel is expected to exceed the level.
    found = [level for level in np.linspace(-5, 4, 9001) if _expected(forecasts, level) > 1.0]
    assert [member.gain for member in members] == pytest.approx(
        [member.forecast.gain(found[-1]) for member in members], abs=2e-3
    )


def _expected(forecasts: list[Forecast], level: float) -> float:
    return sum(forecast.chance_above(float(level)) for forecast in forecasts)
