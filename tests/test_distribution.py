import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy import stats

from kernelcast.bins import DEFAULT_BINS, PAPER_BINS, Bins
from kernelcast.distribution import Distribution

property_test = settings(max_examples=50, deadline=None)
log2_speedups = st.floats(-8.0, 8.0)


@st.composite
def distributions(draw: st.DrawFn) -> Distribution:
    """Any distribution: uneven knots, stretches and ends without mass included."""
    gaps = draw(st.lists(st.floats(0.01, 3.0), min_size=1, max_size=10))
    masses = draw(
        st.lists(
            st.one_of(st.just(0.0), st.floats(0.001, 1.0)), min_size=len(gaps), max_size=len(gaps)
        ).filter(any)
    )
    start = draw(st.floats(-5.0, 5.0))
    values = np.cumsum([0.0, *masses])
    values /= values[-1]
    return Distribution(
        knots=tuple(np.cumsum([start, *gaps]).tolist()), cdf_values=tuple(values.tolist())
    )


def positive_somewhere(size: int) -> st.SearchStrategy[NDArray[np.float64]]:
    return hnp.arrays(np.float64, size, elements=st.floats(0.0, 1.0)).filter(
        lambda mass: mass.sum() > 1e-3
    )


def integral(d: Distribution, of: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> float:
    """The expectation of a function, by a fine midpoint rule that knows only the density."""
    fine = np.unique(
        np.concatenate([np.linspace(a, b, 401) for a, b in zip(d.knots, d.knots[1:], strict=False)])
    )
    middle = (fine[1:] + fine[:-1]) / 2
    return float(np.sum(np.diff(fine) * d.density(middle) * of(middle)))


@property_test
@given(distributions(), st.lists(st.floats(-20.0, 30.0), min_size=2, max_size=20))
def test_cdf_is_monotone_from_0_to_1(d: Distribution, xs: list[float]) -> None:
    values = d.cdf(np.sort(np.array([*xs, *d.knots])))
    assert np.all(np.diff(values) >= -1e-15)
    assert d.cdf(d.knots[0] - 1e-6) == d.cdf(d.knots[0]) == 0.0
    assert d.cdf(d.knots[-1]) == d.cdf(d.knots[-1] + 1e-6) == 1.0
    assert np.all((values >= 0.0) & (values <= 1.0))


@property_test
@given(distributions(), st.floats(0.0, 1.0))
def test_quantile_inverts_cdf_and_is_the_least_that_does(d: Distribution, p: float) -> None:
    x = d.quantile(p)
    assert d.cdf(x) == pytest.approx(p, abs=1e-12)
    if p > 1e-9:
        assert d.cdf(x - 1e-6) < p


@property_test
@given(distributions(), log2_speedups)
def test_cdf_then_quantile_returns_wherever_there_is_mass(d: Distribution, x: float) -> None:
    if d.density(x) > 0.0:
        assert d.quantile(d.cdf(x)) == pytest.approx(x, abs=1e-9)


@property_test
@given(distributions())
def test_density_is_the_slope_of_the_cdf_and_sums_to_1(d: Distribution) -> None:
    assert integral(d, np.ones_like) == pytest.approx(1.0, abs=1e-9)
    middles = (np.array(d.knots[1:]) + np.array(d.knots[:-1])) / 2
    step = 1e-4
    slope = (d.cdf(middles + step) - d.cdf(middles - step)) / (2 * step)
    assert d.density(middles) == pytest.approx(slope, abs=1e-6)
    assert d.density(d.knots[0] - 1e-6) == d.density(d.knots[-1] + 1e-6) == 0.0


def test_density_at_a_knot_is_that_of_the_segment_above_and_at_the_last_below() -> None:
    d = Distribution(knots=(0.0, 1.0, 3.0), cdf_values=(0.0, 0.2, 1.0))
    assert d.density(np.array(d.knots)) == pytest.approx([0.2, 0.4, 0.4])


@property_test
@given(distributions(), log2_speedups)
def test_scalars_and_arrays_agree(d: Distribution, x: float) -> None:
    at = np.array([x, 0.0, d.knots[0], d.knots[-1]])
    assert d.cdf(at).tolist() == [d.cdf(float(a)) for a in at]
    assert d.density(at).tolist() == [d.density(float(a)) for a in at]
    levels = d.cdf(at)
    assert d.quantile(levels).tolist() == [d.quantile(float(p)) for p in levels]
    assert type(d.cdf(x)) is type(d.density(x)) is type(d.quantile(0.5)) is float


@property_test
@given(distributions())
def test_mean_and_std_match_numerical_integration(d: Distribution) -> None:
    mean = integral(d, lambda x: x)
    assert d.mean() == pytest.approx(mean, abs=1e-6)
    assert d.std() == pytest.approx(math.sqrt(integral(d, lambda x: (x - mean) ** 2)), abs=1e-4)


@property_test
@given(distributions(), st.floats(-30.0, 40.0))
def test_expected_improvement_matches_numerical_integration(d: Distribution, t: float) -> None:
    expected = integral(d, lambda x: np.maximum(0.0, x - t))
    assert d.expected_improvement(t) == pytest.approx(expected, abs=1e-4)
    assert d.expected_improvement(d.knots[-1]) == 0.0


def test_expected_improvement_and_moments_match_samples() -> None:
    d = Distribution.mixture(
        [Distribution.normal(-1.0, 0.3), Distribution.normal(0.8, 0.5)], [0.7, 0.3]
    )
    draws = d.quantile(np.random.default_rng(1).random(200_000))
    assert d.expected_improvement(0.5) == pytest.approx(np.maximum(0, draws - 0.5).mean(), abs=3e-3)
    assert d.mean() == pytest.approx(draws.mean(), abs=0.01)
    assert d.std() == pytest.approx(draws.std(), abs=0.01)
    assert np.mean(draws <= 0.1) == pytest.approx(d.cdf(0.1), abs=5e-3)


@property_test
@given(distributions(), st.floats(-6.0, 6.0), log2_speedups, st.floats(0.0, 1.0))
def test_shift_moves_everything_by_delta(d: Distribution, delta: float, x: float, p: float) -> None:
    moved = d.shift(delta)
    assert moved.cdf(x + delta) == pytest.approx(d.cdf(x), abs=1e-9)
    assert moved.mean() == pytest.approx(d.mean() + delta, abs=1e-9)
    assert moved.std() == pytest.approx(d.std(), abs=1e-9)
    assert moved.expected_improvement(x + delta) == pytest.approx(
        d.expected_improvement(x), abs=1e-9
    )
    assert moved.cdf(moved.quantile(p)) == pytest.approx(p, abs=1e-9)


@property_test
@given(distributions(), log2_speedups)
def test_the_mirror_image_is_that_of_the_inverse_speedup(d: Distribution, x: float) -> None:
    assert d.mirrored().cdf(x) == pytest.approx(1.0 - d.cdf(-x))
    assert d.mirrored().mean() == pytest.approx(-d.mean(), abs=1e-9)
    assert d.mirrored().mirrored().knots == d.knots


@given(distributions(), st.floats(0.1, 5.0), st.floats(0.0, 1.0))
def test_widen_stretches_quantiles_about_the_median(
    d: Distribution, factor: float, p: float
) -> None:
    wide, median = d.widen(factor), d.quantile(0.5)
    assert wide.quantile(0.5) == pytest.approx(median, abs=1e-9)
    assert wide.std() == pytest.approx(factor * d.std(), rel=1e-6)
    assert wide.quantile(p) - median == pytest.approx(factor * (d.quantile(p) - median), abs=1e-8)


@property_test
@given(st.lists(distributions(), min_size=1, max_size=4), st.data())
def test_mixture_cdf_is_the_weighted_average(
    parts: list[Distribution], data: st.DataObject
) -> None:
    weights = data.draw(positive_somewhere(len(parts)))
    mixed = Distribution.mixture(parts, weights)
    share = weights / weights.sum()
    x = np.concatenate([np.linspace(-10.0, 35.0, 97), *[part.knots for part in parts]])
    average = sum(s * part.cdf(x) for s, part in zip(share, parts, strict=True))
    assert mixed.cdf(x) == pytest.approx(average, abs=1e-6)
    assert mixed.mean() == pytest.approx(share @ [part.mean() for part in parts], abs=1e-6)


def test_mixture_of_knots_apart_by_rounding_keeps_an_honest_density() -> None:
    one, other = Distribution.normal(0.3, 0.4), Distribution.normal(0.1 + 0.2, 0.4)
    mixed = Distribution.mixture([one, other], [1, 1])
    at = np.array(one.knots)
    assert len(mixed.knots) == len(one.knots)
    assert mixed.density(at + 1e-6) == pytest.approx(one.density(at + 1e-6), abs=1e-6)


@property_test
@given(distributions(), distributions(), st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_a_product_is_proportional_to_both_densities(
    one: Distribution, other: Distribution, p: float, q: float
) -> None:
    product = one.product(other)
    x, y = product.quantile(p), product.quantile(q)
    knots = np.array([*one.knots, *other.knots])
    assume(min(np.abs(knots - x).min(), np.abs(knots - y).min()) > 1e-6)
    both = [one.density(at) * other.density(at) for at in (x, y)]
    assume(min(both) > 0.0)
    found = product.density(x) / product.density(y)
    assert found == pytest.approx(both[0] / both[1], rel=1e-4)


def test_the_product_of_two_normals_lies_between_them_and_is_surer() -> None:
    product = Distribution.normal(0.0, 1.0).product(Distribution.normal(1.0, 0.5))
    assert product.mean() == pytest.approx(0.8, abs=0.02)
    assert product.std() == pytest.approx(math.sqrt(0.2), rel=0.03)


def test_the_product_of_what_excludes_each_other_is_the_average() -> None:
    one, other = (Distribution(knots=(at, at + 1.0), cdf_values=(0.0, 1.0)) for at in (0.0, 5.0))
    assert one.product(other) == Distribution.mixture([one, other], (0.5, 0.5))


@pytest.mark.parametrize("bins", [PAPER_BINS, DEFAULT_BINS], ids=lambda bins: bins.name)
@property_test
@given(data=st.data())
def test_bins_round_trip(bins: Bins, data: st.DataObject) -> None:
    raw = data.draw(positive_somewhere(bins.count))
    d = Distribution.from_bins(bins, raw)
    assert d.bin_probabilities(bins) == pytest.approx(raw / raw.sum(), abs=1e-12)


def test_open_bins_have_the_stated_tails() -> None:
    d = Distribution.from_bins(DEFAULT_BINS, [0.4, 0, 0, 0, 0, 0, 0, 0, 0.6])
    assert d.cdf(np.array([-6.0, -4.0, -3.0, -2.0])) == pytest.approx([0.0, 0.1, 0.2, 0.4])
    assert d.cdf(np.array([2.0, 3.0, 4.0, 6.0])) == pytest.approx([0.4, 0.7, 0.85, 1.0])


@property_test
@given(distributions(), st.sampled_from([PAPER_BINS, DEFAULT_BINS]))
def test_bin_probabilities_are_the_cdf_between_edges(d: Distribution, bins: Bins) -> None:
    probabilities = d.bin_probabilities(bins)
    assert sum(probabilities) == pytest.approx(1.0, abs=1e-12)
    assert min(probabilities) >= 0.0
    for i in range(bins.count - 1):
        above = d.probability_above(bins.log2_edges[i])
        assert sum(probabilities[i + 1 :]) == pytest.approx(above, abs=1e-9)


@property_test
@given(distributions(), st.floats(0.01, 0.99))
def test_interval_is_central_and_holds_its_level(d: Distribution, level: float) -> None:
    low, high = d.interval(level)
    assert d.cdf(low) == pytest.approx((1 - level) / 2, abs=1e-9)
    assert d.probability_above(high) == pytest.approx((1 - level) / 2, abs=1e-9)


@property_test
@given(distributions(), st.floats(-20.0, 20.0, allow_nan=False))
def test_json_round_trip_is_exact(d: Distribution, delta: float) -> None:
    for one in (d, Distribution.mixture([d, Distribution.normal(delta, 1 / 3)], [1, 2])):
        assert Distribution.model_validate_json(one.model_dump_json()) == one


@property_test
@given(st.floats(-6.0, 6.0), st.floats(0.01, 3.0))
def test_normal_matches_scipy(mean: float, std: float) -> None:
    d, truth = Distribution.normal(mean, std), stats.norm(mean, std)
    x = mean + std * np.linspace(-5.0, 5.0, 301)
    assert np.max(np.abs(d.cdf(x) - truth.cdf(x))) < 0.003
    assert np.max(np.abs(d.density(x) - truth.pdf(x))) * std < 0.05
    assert d.mean() == pytest.approx(mean, abs=1e-9 + 1e-6 * std)
    assert d.std() == pytest.approx(std, rel=0.01)
    assert len(d.model_dump_json()) < 1500


@property_test
@given(
    st.lists(st.floats(0.001, 0.999), min_size=2, max_size=9, unique_by=lambda p: round(p, 3)),
    st.data(),
)
def test_from_quantiles_returns_its_quantiles_however_tied_or_crossed(
    levels: list[float], data: st.DataObject
) -> None:
    levels = sorted(levels)
    values = data.draw(
        st.lists(
            st.floats(-4.0, 4.0).map(lambda v: round(v, 1)),
            min_size=len(levels),
            max_size=len(levels),
        )
    )
    d = Distribution.from_quantiles(levels, values)
    assert d.quantile(np.array(levels)) == pytest.approx(
        np.sort(values), abs=1e-3 * len(levels) + 1e-9
    )
    assert d.knots[0] < min(values)
    assert d.knots[-1] > max(values)


def test_from_quantiles_keeps_untied_values_exactly() -> None:
    d = Distribution.from_quantiles([0.1, 0.4, 0.5, 0.9], [-1.0, 0.25, 0.25, 2.0])
    assert d.quantile(np.array([0.1, 0.9])) == pytest.approx([-1.0, 2.0], abs=1e-12)
    assert d.quantile(np.array([0.4, 0.5])) == pytest.approx([0.2495, 0.2505], abs=1e-9)


def test_a_level_that_meets_an_inner_knot_but_for_rounding_keeps_an_honest_density() -> None:
    for level in np.nextafter(stats.norm.cdf(0.25), [0.0, 1.0]):
        levels = np.array([0.1, level, 0.9])
        d = Distribution.from_quantiles(levels, stats.norm.ppf(levels))
        assert d.density(np.array(d.knots)) == pytest.approx(
            stats.norm.pdf(np.array(d.knots)), abs=0.05
        )


@pytest.mark.parametrize("levels", [[0.05, 0.25, 0.5, 0.75, 0.95], [0.1, 0.5, 0.9]])
def test_quantiles_of_a_normal_give_back_its_tails(levels: list[float]) -> None:
    truth = stats.norm(0.5, 0.8)
    d = Distribution.from_quantiles(levels, truth.ppf(levels))
    for level in (0.002, 0.01, 0.99, 0.998):
        assert d.quantile(level) == pytest.approx(truth.ppf(level), abs=0.03)
    assert d.mean() == pytest.approx(0.5, abs=1e-6)
    assert d.std() == pytest.approx(0.8, rel=0.01)


def test_from_samples_matches_the_kernel_estimate_it_stands_for() -> None:
    samples = np.random.default_rng(3).normal(0.2, 0.7, 150)
    bandwidth = 0.25
    d = Distribution.from_samples(samples, bandwidth)
    x = np.linspace(-3.0, 3.0, 201)
    exact = stats.norm(samples[:, None], bandwidth).cdf(x).mean(axis=0)
    assert np.max(np.abs(d.cdf(x) - exact)) < 0.005
    assert d.mean() == pytest.approx(samples.mean(), abs=0.02)
    assert d.std() == pytest.approx(math.hypot(samples.std(), bandwidth), rel=0.03)


def test_from_samples_keeps_two_distant_clusters_apart() -> None:
    d = Distribution.from_samples([-3.0] * 50 + [3.0] * 50, bandwidth=0.1)
    assert d.cdf(2.0) - d.cdf(-2.0) < 1 / 32
    assert d.cdf(0.0) == pytest.approx(0.5, abs=1 / 32)


def test_one_sample_has_the_spread_of_its_bandwidth() -> None:
    d = Distribution.from_samples([0.4], bandwidth=0.2)
    assert d.quantile(0.5) == pytest.approx(0.4, abs=1e-3)
    assert d.std() == pytest.approx(0.2, rel=0.03)


@pytest.mark.parametrize("samples", [[0.4], [0.4, 0.4, 0.4]])
def test_samples_without_spread_ask_for_a_bandwidth(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="explicit bandwidth"):
        Distribution.from_samples(samples)


def test_weights_count_like_repeated_samples() -> None:
    repeated = Distribution.from_samples([0.0, 0.0, 0.0, 1.0], bandwidth=0.3)
    weighted = Distribution.from_samples([0.0, 1.0], bandwidth=0.3, weights=[3, 1])
    x = np.linspace(-1.0, 2.0, 50)
    assert weighted.cdf(x) == pytest.approx(repeated.cdf(x), abs=1e-9)


@property_test
@given(hnp.arrays(np.float64, st.integers(1, 30), elements=log2_speedups), st.floats(0.01, 2.0))
def test_from_samples_covers_every_sample(samples: NDArray[np.float64], bandwidth: float) -> None:
    d = Distribution.from_samples(samples, bandwidth)
    assert len(d.knots) == 37
    assert d.knots[0] < samples.min()
    assert d.knots[-1] > samples.max()


@pytest.mark.parametrize(
    ("knots", "cdf_values"),
    [
        ((0.0,), (1.0,)),
        ((0.0, 1.0, 2.0), (0.0, 1.0)),
        ((0.0, 0.0), (0.0, 1.0)),
        ((1.0, 0.0), (0.0, 1.0)),
        ((0.0, 1.0), (1e-9, 1.0)),
        ((0.0, 1.0), (0.0, 1.0 - 1e-9)),
        ((0.0, 1.0, 2.0, 3.0), (0.0, 0.6, 0.5, 1.0)),
        ((0.0, math.inf), (0.0, 1.0)),
        ((0.0, 1.0, 2.0), (0.0, math.nan, 1.0)),
    ],
)
def test_what_is_no_distribution_is_refused(
    knots: tuple[float, ...], cdf_values: tuple[float, ...]
) -> None:
    with pytest.raises(ValidationError):
        Distribution(knots=knots, cdf_values=cdf_values)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Distribution.from_bins(PAPER_BINS, [0.5, 0.5]),
        lambda: Distribution.from_bins(PAPER_BINS, [0.0] * 8),
        lambda: Distribution.from_bins(PAPER_BINS, [-0.1, 1.1, 0, 0, 0, 0, 0, 0]),
        lambda: Distribution.from_bins(PAPER_BINS, [math.nan] * 8),
        lambda: Distribution.from_quantiles([0.5], [0.0]),
        lambda: Distribution.from_quantiles([0.0, 0.5], [0.0, 1.0]),
        lambda: Distribution.from_quantiles([0.5, 0.2], [0.0, 1.0]),
        lambda: Distribution.from_quantiles([0.2, 0.5], [0.0, 1.0, 2.0]),
        lambda: Distribution.from_samples([], bandwidth=0.1),
        lambda: Distribution.from_samples([math.nan], bandwidth=0.1),
        lambda: Distribution.from_samples([0.0, 1.0], weights=[1.0]),
        lambda: Distribution.normal(0.0, 0.0),
        lambda: Distribution.mixture([], []),
        lambda: Distribution.mixture([Distribution.normal(0, 1)], [0.5, 0.5]),
        lambda: Distribution.normal(0, 1).quantile(1.1),
        lambda: Distribution.normal(0, 1).widen(0.0),
    ],
)
def test_wrong_arguments_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r".{15}"):
        make()


@property_test
@given(hnp.arrays(np.float64, (5, 3), elements=log2_speedups))
def test_rows_of_quantiles_give_what_each_gives_alone(rows: NDArray[np.float64]) -> None:
    levels = (0.1, 0.5, 0.8)
    together = Distribution.all_from_quantiles(levels, rows)
    assert together == [Distribution.from_quantiles(levels, row) for row in rows]
