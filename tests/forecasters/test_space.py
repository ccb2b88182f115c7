from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernelcast.errors import SetupError
from kernelcast.forecasters.space import Sibling, SpaceForecaster
from kernelcast.types import Parameters

Floats = NDArray[np.float64]

POOL: list[Parameters] = [
    {"block": block, "tile": tile, "unroll": unroll, "layout": layout}
    for block, tile, unroll, layout in itertools.product(
        (16, 32, 64, 128, 256), (1, 2, 4, 8), (0, 1), ("row", "column", "blocked")
    )
]


def log2_runtime(parameters: Parameters, shift: float = 0.0) -> float:
    """A synthetic kernel: best near block 64 and tile 4 (moved by `shift`), rough in layout."""
    block, tile = math.log2(float(parameters["block"])), math.log2(float(parameters["tile"]))
    layout = {"row": 0.0, "column": 0.8, "blocked": 0.3}[str(parameters["layout"])]
    padded = 0.2 * float(parameters["unroll"]) * (tile - 1)
    return 0.5 * abs(block - 6 - shift) + 0.4 * abs(tile - 2 + shift) + layout + padded


def times(shift: float = 0.0) -> Floats:
    return np.array([log2_runtime(each, shift) for each in POOL])


def sibling(shift: float = 0.0, known: int | None = None, *, same_vendor: bool = True) -> Sibling:
    table = times(shift)
    if known is not None:
        table[np.random.default_rng(1).permutation(len(table))[known:]] = np.nan
    return Sibling("other", table, np.zeros(len(table), dtype=bool), same_vendor)


def search(forecaster: SpaceForecaster, truth: Floats, measurements: int) -> list[int]:
    chosen = []
    for _ in range(measurements):
        index = forecaster.choose()
        chosen.append(index)
        value = float(truth[index])
        forecaster.learn(index, value if math.isfinite(value) else None)
    return chosen


def test_cold_it_finds_the_best_in_a_third_of_the_pool() -> None:
    truth = times()
    for seed in range(5):
        chosen = search(SpaceForecaster(POOL, seed=seed), truth, 40)
        assert len(set(chosen)) == 40
        assert truth[chosen].min() == pytest.approx(truth.min(), abs=0.02)


def test_the_same_seed_makes_the_same_choices() -> None:
    truth = times()
    first, again, other = (search(SpaceForecaster(POOL, seed=s), truth, 20) for s in (3, 3, 4))
    assert first == again
    assert first != other


def test_asking_twice_changes_nothing() -> None:
    asked, once = SpaceForecaster(POOL), SpaceForecaster(POOL)
    for _ in range(15):
        index = asked.choose()
        assert asked.choose() == index
        asked.predict()
        assert once.choose() == index
        for each in (asked, once):
            each.learn(index, log2_runtime(POOL[index]))


def test_predictions_beat_a_constant_and_most_lie_in_their_intervals() -> None:
    # As rough as real kernels are: no parameter explains the second part.
    truth = times() + np.random.default_rng(5).normal(scale=0.3, size=len(POOL))
    inside: list[float] = []
    errors: list[float] = []
    constant: list[float] = []
    for seed in range(8):
        forecaster = SpaceForecaster(POOL, seed=seed)
        chosen = search(forecaster, truth, 30)
        predicted = forecaster.predict()
        unseen = np.setdiff1d(np.arange(len(POOL)), chosen)
        error = np.abs(predicted.log2_runtime - truth)[unseen]
        errors += error.tolist()
        constant += np.abs(truth[unseen] - truth[chosen].mean()).tolist()
        inside += (error < 1.2816 * predicted.std_log2[unseen]).tolist()
    assert np.mean(errors) < 0.8 * np.mean(constant)
    assert 0.65 < np.mean(inside) < 0.97


def test_a_search_that_stands_still_draws_probes() -> None:
    truth = times()
    forecaster = SpaceForecaster(POOL)
    chosen = search(forecaster, truth, 10)
    assert forecaster.blind == set(chosen[:4])  # the diverse starts
    chosen += search(forecaster, truth, 50)
    probes = forecaster.blind - set(chosen[:4])
    assert probes < set(chosen)
    assert 5 <= len(probes) <= 8
    # The others are chosen to be fast.
    assert truth[list(probes)].mean() > truth[list(set(chosen) - forecaster.blind)].mean()
    pending: list[int] = []
    for _ in range(14):
        pending.append(forecaster.choose(pending=pending))
    assert len(forecaster.blind & set(pending)) == 2


def test_errors_at_probes_widen_all_intervals() -> None:
    # Blind rows are hard to predict, chosen ones easy, as after a search.
    noise = np.random.default_rng(4).normal(scale=1.0, size=len(POOL))
    rows = np.random.default_rng(3).permutation(len(POOL))[:40].tolist()
    widths = []
    for blind in (rows[:10], rows[10:20]):
        forecaster = SpaceForecaster(POOL)
        forecaster.blind = set(blind)
        for index in rows:
            hard = noise[index] if index in rows[:10] else 0.0
            forecaster.learn(index, log2_runtime(POOL[index]) + float(hard))
        widths.append(forecaster.predict().std_log2[np.setdiff1d(np.arange(len(POOL)), rows)])
    assert np.median(widths[0] / widths[1]) > 1.5


def test_it_is_surer_of_what_it_measured() -> None:
    forecaster = SpaceForecaster(POOL)
    chosen = search(forecaster, times(), 20)
    std = forecaster.predict().std_log2
    unseen = np.setdiff1d(np.arange(len(POOL)), chosen)
    assert std[chosen].max() < std[unseen].mean()
    assert std.min() > 0


def test_slow_configurations_are_predicted_on_their_own_scale() -> None:
    truth = times() * 4.0
    forecaster = SpaceForecaster(POOL)
    order = np.random.default_rng(0).permutation(len(POOL))
    for index in order[:60]:
        forecaster.learn(int(index), float(truth[index]))
    predicted = forecaster.predict().log2_runtime
    slow = truth > np.quantile(truth, 0.8)
    assert np.mean(predicted[slow] - truth[slow]) == pytest.approx(0.0, abs=1.0)
    assert np.corrcoef(predicted, truth)[0, 1] > 0.9


def test_failures_are_learnt() -> None:
    truth = times()
    fails = np.array([each["layout"] == "blocked" for each in POOL])
    truth[fails] = np.inf
    forecaster = SpaceForecaster(POOL, seed=1)
    chosen = search(forecaster, truth, 40)
    unseen = np.setdiff1d(np.arange(len(POOL)), chosen)
    p_ok = forecaster.predict().p_ok
    assert ((p_ok > 0) & (p_ok <= 1)).all()
    assert p_ok[unseen][~fails[unseen]].mean() > p_ok[unseen][fails[unseen]].mean() + 0.15
    assert truth[chosen].min() == truth.min()


def test_all_failing_keeps_asking_for_new_ones() -> None:
    chosen = search(SpaceForecaster(POOL), np.full(len(POOL), np.inf), len(POOL))
    assert sorted(chosen) == list(range(len(POOL)))


def test_siblings_help_from_the_first_measurement() -> None:
    truth = times(0.0)
    forecaster = SpaceForecaster(POOL, [sibling(0.5), sibling(-0.5)])
    ordered = forecaster.predict().log2_runtime
    assert truth[np.argsort(ordered)[:12]].min() == truth.min()
    chosen = search(forecaster, truth, 10)
    assert truth[chosen].min() == pytest.approx(truth.min(), abs=0.05)


def test_a_few_rows_of_a_sibling_help_too() -> None:
    truth = times(0.3)
    chosen = search(SpaceForecaster(POOL, [sibling(0.0, known=40)]), truth, 10)
    cold = [search(SpaceForecaster(POOL, seed=seed), truth, 10) for seed in range(6)]
    assert truth[chosen].min() < np.mean([truth[each].min() for each in cold])


def test_a_misleading_sibling_is_overcome() -> None:
    truth = times()
    wrong = Sibling("liar", -truth, np.zeros(len(truth), dtype=bool))
    chosen = search(SpaceForecaster(POOL, [wrong]), truth, 50)
    assert truth[chosen].min() < np.quantile(truth, 0.05)


def estimates(shift: float, known: int | None = None) -> Sibling:
    measured = sibling(shift, known)
    return Sibling("emulated", measured.log2_runtime, measured.failed, is_estimate=True)


def test_estimates_help_a_cold_search() -> None:
    truth = times(0.3)
    chosen = search(SpaceForecaster(POOL, [estimates(0.0, known=40)]), truth, 10)
    cold = [search(SpaceForecaster(POOL, seed=seed), truth, 10) for seed in range(6)]
    assert truth[chosen].min() < np.mean([truth[each].min() for each in cold])


@pytest.mark.parametrize("kind", ["permuted", "reversed"])
def test_siblings_that_mislead_are_dropped_within_ten_measurements(kind: str) -> None:
    truth = times()
    order = np.random.default_rng(3).permutation(len(truth))
    table = truth[order] if kind == "permuted" else truth.max() - truth
    failed = np.zeros(len(truth), dtype=bool)
    forecaster = SpaceForecaster(POOL, [Sibling("a", table, failed), Sibling("b", table, failed)])
    chosen = search(forecaster, truth, 10)
    assert not forecaster.trusts_siblings
    chosen += search(forecaster, truth, 20)
    assert truth[chosen].min() == pytest.approx(truth.min(), abs=0.1)


def test_siblings_that_help_are_trusted() -> None:
    forecaster = SpaceForecaster(POOL, [sibling(0.2), sibling(-0.2)])
    search(forecaster, times(), 10)
    assert forecaster.trusts_siblings
    assert not SpaceForecaster(POOL).trusts_siblings


def test_measured_times_of_the_vendor_are_believed_before_estimates() -> None:
    right, wrong, foreign = sibling(0.0), estimates(3.0), sibling(-3.0, same_vendor=False)
    both = SpaceForecaster(POOL, [right, wrong]).predict().log2_runtime
    assert int(np.argmin(both)) == int(np.argmin(times()))
    guess = SpaceForecaster(POOL, [estimates(0.0), foreign]).predict().log2_runtime
    assert int(np.argmin(guess)) == int(np.argmin(times()))


def test_what_fails_on_siblings_is_doubted_and_tried_late() -> None:
    truth = times()
    best = int(np.argmin(truth))
    failed = np.zeros(len(truth), dtype=bool)
    failed[best] = True
    table = np.where(failed, np.nan, truth)
    forecaster = SpaceForecaster(POOL, [Sibling("other", table, failed)])
    p_ok = forecaster.predict().p_ok
    assert p_ok[best] < 0.3
    assert np.delete(p_ok, best).min() > 0.9
    assert forecaster.choose() != best


def test_an_unknown_sibling_is_no_sibling() -> None:
    nothing = Sibling("other", np.full(len(POOL), np.nan), np.zeros(len(POOL), dtype=bool))
    truth = times()
    assert search(SpaceForecaster(POOL, [nothing]), truth, 15) == search(
        SpaceForecaster(POOL), truth, 15
    )


def test_costs_turn_the_choice_to_what_is_cheap() -> None:
    truth = times()
    dear = np.array([each["layout"] == "blocked" for each in POOL])
    spent = {}
    for per_second in (False, True):
        forecaster = SpaceForecaster(POOL, seed=2)
        chosen = []
        for _ in range(30):
            index = forecaster.choose(per_second=per_second)
            forecaster.learn(index, float(truth[index]), 100.0 if dear[index] else 1.0)
            chosen.append(index)
        spent[per_second] = int(dear[chosen].sum())
    assert spent[True] < spent[False]


def test_a_second_measurement_replaces_the_first() -> None:
    corrected, right = SpaceForecaster(POOL), SpaceForecaster(POOL)
    order = [5, 50, 90, 17]
    corrected.learn(order[0], 9.0)
    for index in order[1:] + order[:1]:
        corrected.learn(index, log2_runtime(POOL[index]))
        right.learn(index, log2_runtime(POOL[index]))
    np.testing.assert_allclose(corrected.predict().log2_runtime, right.predict().log2_runtime)


def test_a_large_pool_is_shortlisted_and_still_searched() -> None:
    pool: list[Parameters] = [
        {"a": a, "b": b, "c": c} for a in range(1, 31) for b in range(1, 31) for c in range(8)
    ]
    truth = np.array(
        [abs(int(p["a"]) - 20) + abs(int(p["b"]) - 9) + int(p["c"]) % 3 for p in pool], dtype=float
    )
    chosen = search(SpaceForecaster(pool), truth, 40)
    assert truth[chosen].min() <= np.quantile(truth, 0.005)
    table = Sibling("other", truth + 0.01, np.zeros(len(pool), dtype=bool))
    assert truth[search(SpaceForecaster(pool, [table]), truth, 8)].min() == 0


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("with_sibling", [False, True])
def test_the_smallest_spaces(size: int, with_sibling: bool) -> None:
    pool: list[Parameters] = [{"block": 2**k} for k in range(size)]
    known = Sibling("other", np.arange(size, dtype=float), np.zeros(size, dtype=bool))
    forecaster = SpaceForecaster(pool, [known] if with_sibling else [])
    assert np.isfinite(forecaster.predict().log2_runtime).all()
    assert sorted(search(forecaster, np.arange(size, dtype=float), size)) == list(range(size))
    assert np.isfinite(forecaster.predict().std_log2).all()
    with pytest.raises(SetupError, match="none left"):
        forecaster.choose()


def test_a_set_up_that_cannot_be_is_named() -> None:
    with pytest.raises(SetupError, match="at least one"):
        SpaceForecaster([])
    with pytest.raises(SetupError, match="one each, in their order"):
        SpaceForecaster(POOL, [Sibling("short", np.zeros(3), np.zeros(3, dtype=bool))])


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "size": st.integers(-4, 1024),
                "ratio": st.floats(0, 8),
                "kind": st.sampled_from(["a", "b", "c"]),
            }
        ),
        min_size=1,
        max_size=14,
        unique_by=lambda each: tuple(each.values()),
    ),
    st.data(),
)
def test_any_space_is_measured_through_each_once(
    pool: list[dict[str, int | float | str]], data: st.DataObject
) -> None:
    outcome = st.one_of(st.none(), st.floats(-10, 20))
    outcomes = data.draw(st.lists(outcome, min_size=len(pool), max_size=len(pool)))
    forecaster = SpaceForecaster(pool)
    left = set(range(len(pool)))
    while left:
        index = forecaster.choose()
        assert index in left
        left.remove(index)
        forecaster.learn(index, outcomes[index])
        predicted = forecaster.predict()
        assert np.isfinite(predicted.log2_runtime).all()
        assert (predicted.std_log2 > 0).all()
        assert ((predicted.p_ok >= 0) & (predicted.p_ok <= 1)).all()
