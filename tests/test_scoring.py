import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy import stats

from kernelcast.distribution import Distribution
from kernelcast.scoring import (
    aurc,
    auroc,
    crps,
    entropy_confidence,
    expected_calibration_error,
    half_brier,
    likeliest_bin,
    log_score,
    margin_confidence,
    precision_and_recall,
    reliability_table,
    risk_coverage,
    spearman,
    top_k_regret,
)

Floats = NDArray[np.float64]

property_test = settings(max_examples=50, deadline=None)


def probabilities(size: int, least: float = 0.0) -> st.SearchStrategy[Floats]:
    return (
        hnp.arrays(np.float64, size, elements=st.floats(least, 1.0))
        .filter(lambda mass: mass.sum() > 0.01)
        .map(lambda mass: mass / mass.sum())
    )


def pairs(
    low: float, high: float, least: int = 1, digits: int = 1
) -> st.SearchStrategy[list[tuple[float, float]]]:
    """Rounded, so that ties are common."""
    number = st.floats(low, high).map(lambda value: round(value, digits))
    return st.lists(st.tuples(number, number), min_size=least, max_size=12)


@st.composite
def forecasts(draw: st.DrawFn) -> Distribution:
    first = Distribution.normal(draw(st.floats(-2.0, 2.0)), draw(st.floats(0.2, 1.5)))
    other = Distribution.normal(draw(st.floats(-2.0, 2.0)), draw(st.floats(0.2, 1.5)))
    return Distribution.mixture([first, other], [draw(st.floats(0.1, 1.0)), 1.0])


# Proper scores: the truth has the best expected score, by exactly the known divergence.


def expected(score: Callable[[Floats, int], float], forecast: Floats, truth: Floats) -> float:
    return float(sum(p * score(forecast, i) for i, p in enumerate(truth) if p > 0.0))


@property_test
@given(probabilities(8), probabilities(8))
def test_half_brier_is_proper(truth: Floats, other: Floats) -> None:
    excess = expected(half_brier, other, truth) - expected(half_brier, truth, truth)
    assert excess == pytest.approx(np.sum((truth - other) ** 2) / 2, abs=1e-12)


@settings(property_test, max_examples=25)
@given(forecasts(), forecasts())
def test_crps_is_proper(truth: Distribution, other: Distribution) -> None:
    outcomes = truth.quantile((np.arange(200) + 0.5) / 200).tolist()
    excess = np.mean([crps(other, y) - crps(truth, y) for y in outcomes])
    x = np.linspace(-9.0, 9.0, 20_001)
    divergence = np.sum((truth.cdf(x) - other.cdf(x)) ** 2) * (x[1] - x[0])
    assert excess == pytest.approx(divergence, rel=0.02, abs=2e-4)


@property_test
@given(forecasts(), forecasts())
def test_log_score_is_proper(truth: Distribution, other: Distribution) -> None:
    # Densities are constant between knots, so a sum over their middles is the exact expectation.
    knots = np.union1d(truth.knots, other.knots)
    middles, mass = (knots[1:] + knots[:-1]) / 2, np.diff(truth.cdf(knots))
    excess = sum(
        m * (log_score(other, y, floor=1e-9) - log_score(truth, y, floor=1e-9))
        for m, y in zip(mass.tolist(), middles.tolist(), strict=True)
        if m > 0.0
    )
    x = np.linspace(truth.knots[0], truth.knots[-1], 40_001)[1:-1]
    f, g = np.maximum(truth.density(x), 1e-9), np.maximum(other.density(x), 1e-9)
    divergence = np.sum(f * np.log(f / g)) * (x[1] - x[0])
    assert excess >= -1e-9
    assert excess == pytest.approx(divergence, rel=0.01, abs=2e-3)


# Values of the scores.


@property_test
@given(forecasts(), st.floats(-8.0, 8.0))
def test_crps_matches_numerical_integration(forecast: Distribution, y: float) -> None:
    x = np.linspace(-12.0, 12.0, 48_001)
    numeric = np.sum((forecast.cdf(x) - (x >= y)) ** 2) * (x[1] - x[0])
    assert crps(forecast, y) == pytest.approx(numeric, abs=1e-3)


def test_crps_of_a_near_point_forecast_is_the_absolute_error() -> None:
    point = Distribution.normal(1.0, 1e-6)
    assert crps(point, 1.7) == pytest.approx(0.7, abs=1e-5)
    assert crps(point, -1.0) == pytest.approx(2.0, abs=1e-5)
    assert crps(point, 1.0) == pytest.approx(0.0, abs=1e-5)


def test_crps_of_a_normal_has_the_known_value() -> None:
    # For the standard normal at its mean: 2 phi(0) - 1 / sqrt(pi).
    known = 2 / math.sqrt(2 * math.pi) - 1 / math.sqrt(math.pi)
    assert crps(Distribution.normal(0.0, 1.0), 0.0) == pytest.approx(known, abs=0.003)


def test_log_score_of_a_normal_and_outside_of_its_support() -> None:
    d = Distribution.normal(0.5, 0.4)
    middle = (d.knots[20] + d.knots[21]) / 2
    assert log_score(d, middle) == pytest.approx(-stats.norm(0.5, 0.4).logpdf(middle), abs=0.01)
    assert log_score(d, 5.0) == math.inf
    assert log_score(d, 5.0, floor=1e-3) == pytest.approx(math.log(1000))
    assert log_score(d, middle, floor=1e-3) == log_score(d, middle)


@property_test
@given(probabilities(9), st.integers(0, 8))
def test_half_brier_matches_its_definition_and_range(p: Floats, outcome: int) -> None:
    onehot = np.eye(9)[outcome]
    assert half_brier(p, outcome) == pytest.approx(0.5 * np.sum((p - onehot) ** 2), abs=1e-12)
    assert -1e-12 <= half_brier(p, outcome) <= 1 + 1e-12


def test_sure_forecasts_score_the_ends_of_the_range() -> None:
    sure = [0.0, 0.0, 0.0, 1.0]
    assert half_brier(sure, 3) == 0.0
    assert half_brier(sure, 0) == 1.0


@pytest.mark.parametrize(
    ("p", "outcome"),
    [
        ([0.5, 0.6], 0),
        ([-0.1, 1.1], 0),
        ([math.nan, 1.0], 0),
        ([1.0], 0),
        ([0.5, 0.5], 2),
        ([0.5, 0.5], -1),
    ],
)
def test_improper_input_is_refused(p: list[float], outcome: int) -> None:
    with pytest.raises(ValueError, match=r"sum to 1|not one of"):
        half_brier(p, outcome)


# Calibration.


def test_reliability_table_by_hand() -> None:
    rows = reliability_table([0.05, 0.1, 0.15, 0.95, 1.0], [0, 0, 1, 1, 0])
    assert [(row.low, row.high, row.count) for row in rows] == [
        (0.0, 0.1, 1),
        (0.1, 0.2, 2),
        (0.9, 1.0, 2),
    ]
    assert [row.mean_confidence for row in rows] == pytest.approx([0.05, 0.125, 0.975])
    assert [row.accuracy for row in rows] == [0.0, 0.5, 0.5]
    error = expected_calibration_error([0.05, 0.1, 0.15, 0.95, 1.0], [0, 0, 1, 1, 0])
    assert error == pytest.approx((0.05 + 2 * 0.375 + 2 * 0.475) / 5)


@property_test
@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.booleans()), min_size=1, max_size=40),
    st.integers(1, 12),
)
def test_reliability_rows_hold_every_forecast_once(
    claims: list[tuple[float, bool]], buckets: int
) -> None:
    confidences, correct = zip(*claims, strict=True)
    rows = reliability_table(confidences, correct, buckets)
    assert sum(row.count for row in rows) == len(claims)
    assert sum(row.count * row.accuracy for row in rows) == pytest.approx(sum(correct))
    for row in rows:
        inside = [c for c in confidences if row.low <= c < row.high or c == row.high == 1.0]
        assert len(inside) == row.count
        assert np.mean(inside) == pytest.approx(row.mean_confidence)
    error = expected_calibration_error(confidences, correct, buckets)
    assert abs(np.mean(confidences) - np.mean(correct)) - 1e-12 <= error <= 1.0


def test_a_calibrated_forecaster_has_little_error_and_a_boaster_much() -> None:
    rng = np.random.default_rng(0)
    confidences = rng.uniform(0.1, 1.0, 20_000)
    correct = rng.random(20_000) < confidences
    assert expected_calibration_error(confidences, correct) < 0.02
    assert expected_calibration_error(np.ones(20_000), correct) == pytest.approx(0.45, abs=0.02)
    assert math.isnan(expected_calibration_error([], []))


# Ranking.


def test_spearman_averages_ties_and_is_undefined_without_an_order() -> None:
    assert spearman([1.0, 2.0, 2.0, 9.0], [0.1, 0.3, 0.4, 8.0]) == pytest.approx(0.94868, abs=1e-5)
    assert spearman([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    for constant in ([], [1.0], [1.0, 1.0]):
        assert math.isnan(spearman(constant, list(range(len(constant)))))


@property_test
@given(pairs(-2.0, 2.0), st.integers(1, 14), st.randoms(use_true_random=False))
def test_top_k_regret_falls_with_k_and_ignores_order(
    rows: list[tuple[float, float]], k: int, random: np.random.Generator
) -> None:
    predicted, actual = np.array(rows).T
    regret = top_k_regret(predicted, actual, k)
    assert 0.0 <= top_k_regret(predicted, actual, k + 1) <= regret + 1e-12
    assert regret <= actual.max() - actual.min() + 1e-12
    assert top_k_regret(predicted, actual, len(rows)) == pytest.approx(0.0, abs=1e-12)
    assert top_k_regret(actual, actual, k) == pytest.approx(0.0, abs=1e-12)
    random.shuffle(rows)
    predicted, actual = np.array(rows).T
    assert top_k_regret(predicted, actual, k) == pytest.approx(regret, abs=1e-12)


@property_test
@given(pairs(0.0, 0.4), st.integers(1, 5))
def test_top_k_regret_is_the_mean_over_all_ways_to_break_ties(
    rows: list[tuple[float, float]], k: int
) -> None:
    predicted, actual = np.array(rows).T
    rng = np.random.default_rng(0)
    broken = [
        actual.max() - actual[np.lexsort((rng.random(len(rows)), -predicted))[:k]].max()
        for _ in range(400)
    ]
    assert top_k_regret(predicted, actual, k) == pytest.approx(np.mean(broken), abs=0.06)


def test_top_k_regret_by_hand() -> None:
    predicted, actual = [3.0, 2.0, 1.0, 0.0], [0.1, 0.5, 2.0, -1.0]
    assert top_k_regret(predicted, actual, 1) == pytest.approx(1.9)
    assert top_k_regret(predicted, actual, 2) == pytest.approx(1.5)
    assert top_k_regret(predicted, actual, 3) == 0.0
    assert top_k_regret([0.0, 0.0, 0.0], [0.0, 1.0, 3.0], 2) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="k of at least 1"):
        top_k_regret(predicted, actual, 0)


@property_test
@given(pairs(-1.0, 1.0, least=2), st.data())
def test_auroc_is_the_share_of_pairs_in_order(
    rows: list[tuple[float, float]], data: st.DataObject
) -> None:
    scores = np.array([row[0] for row in rows])
    labels = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    ours = auroc(scores, labels)
    if labels.all() or not labels.any():
        assert math.isnan(ours)
        return
    difference = scores[labels][:, None] - scores[~labels]
    assert ours == pytest.approx(np.mean((difference > 0) + 0.5 * (difference == 0)))
    assert auroc(-scores, labels) == pytest.approx(1.0 - ours)


# Knowing when to trust.


@property_test
@given(pairs(0.0, 1.0), st.randoms(use_true_random=False))
def test_risk_coverage_ends_at_the_mean_loss_and_ignores_order(
    rows: list[tuple[float, float]], random: np.random.Generator
) -> None:
    confidences, losses = np.array(rows).T
    curve = risk_coverage(confidences, losses)
    assert curve.coverage[-1] == 1.0
    assert np.all(np.diff(curve.coverage) > 0.0)
    assert curve.risk[-1] == pytest.approx(losses.mean())
    best = losses[confidences == confidences.max()].mean()
    assert curve.risk[0] == pytest.approx(best)
    area = aurc(confidences, losses)
    assert aurc(-losses, losses) - 1e-12 <= area <= aurc(losses, losses) + 1e-12
    assert aurc(np.zeros_like(losses), losses) == pytest.approx(losses.mean())
    random.shuffle(rows)
    confidences, losses = np.array(rows).T
    assert aurc(confidences, losses) == pytest.approx(area, abs=1e-12)


def test_risk_coverage_by_hand() -> None:
    curve = risk_coverage([0.9, 0.5, 0.5, 0.1], [0.0, 1.0, 0.0, 1.0])
    assert curve.coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert curve.risk == pytest.approx([0.0, 0.25, 1 / 3, 0.5])
    assert aurc([0.9, 0.5, 0.5, 0.1], [0.0, 1.0, 0.0, 1.0]) == pytest.approx(13 / 48)
    assert math.isnan(aurc([], []))
    assert risk_coverage([], []).coverage.size == 0


@property_test
@given(st.integers(2, 9).flatmap(probabilities), st.floats(0.0, 1.0), st.data())
@pytest.mark.parametrize("confidence", [entropy_confidence, margin_confidence])
def test_a_confidence_runs_from_uniform_to_sure(
    confidence: Callable[[Floats], float], p: Floats, doubt: float, data: st.DataObject
) -> None:
    uniform = np.full(p.size, 1.0 / p.size)
    claimed = confidence(p)
    assert 0.0 <= claimed <= 1.0
    assert confidence(uniform) == pytest.approx(0.0, abs=1e-12)
    assert confidence(np.eye(p.size)[data.draw(st.integers(0, p.size - 1))]) == 1.0
    shuffled = np.array(data.draw(st.permutations(p.tolist())))
    assert confidence(shuffled) == pytest.approx(claimed, abs=1e-12)
    assert confidence((1.0 - doubt) * p + doubt * uniform) <= claimed + 1e-12


def test_confidences_by_hand() -> None:
    assert margin_confidence([0.5, 0.3, 0.2]) == pytest.approx(0.2)
    assert entropy_confidence([0.5, 0.5, 0.0, 0.0]) == pytest.approx(0.5)
    assert entropy_confidence([0.25, 0.75]) == pytest.approx(0.188722, abs=1e-6)
    for function in (entropy_confidence, margin_confidence, likeliest_bin):
        with pytest.raises(ValueError, match="sum to 1"):
            function([0.5, 0.4])


def test_the_likeliest_bin_is_the_lowest_of_equals_despite_rounding() -> None:
    assert likeliest_bin([0.1, 0.45 - 1e-12, 0.45 + 1e-12]) == 1
    assert likeliest_bin([0.2, 0.3, 0.5]) == 2


@property_test
@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=12))
def test_precision_and_recall_are_shares_of_the_claimed_and_of_the_true(
    cases: list[tuple[bool, bool]],
) -> None:
    claimed, actual = [said for said, _ in cases], [true for _, true in cases]
    precision, recall = precision_and_recall(claimed, actual)
    came_true = [true for said, true in cases if said]
    found = [said for said, true in cases if true]
    for share, outcomes in ((precision, came_true), (recall, found)):
        if outcomes:
            assert share == pytest.approx(np.mean(outcomes))
        else:
            assert math.isnan(share)
    # Who claims everything finds everything, at the precision of the base rate.
    everything = precision_and_recall([True] * len(cases), actual)
    if any(actual):
        assert everything == pytest.approx((np.mean(actual), 1.0))


@pytest.mark.parametrize(
    "function", [spearman, aurc, auroc, expected_calibration_error, precision_and_recall]
)
@pytest.mark.parametrize(
    ("a", "b"), [([0.1], [0.1, 0.2]), ([math.nan], [0.0]), ([0.1], [math.inf]), ([[0.1]], [[0.1]])]
)
def test_lists_that_do_not_pair_up_are_refused(
    function: Callable[[object, object], float], a: object, b: object
) -> None:
    with pytest.raises(ValueError, match=r"one length|finite"):
        function(a, b)


def test_a_confidence_above_1_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        reliability_table([1.2], [1])
