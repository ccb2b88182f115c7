from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernelcast.forecasters._encoding import Encoding
from kernelcast.forecasters._failures import FailureModel
from kernelcast.scoring import auroc
from kernelcast.types import Parameters

POOL: list[Parameters] = [
    {"x": x, "y": y, "tile": tile, "mode": mode}
    for x in (8, 16, 32, 64, 128, 256)
    for y in (1, 2, 4, 8, 16)
    for tile in (1, 2, 4, 8)
    for mode in ("a", "b")
]
ENCODING = Encoding.of(POOL, {})
_, FEATURES = ENCODING.encode(POOL)
UNKNOWN = np.full(len(POOL), np.nan)
TOO_LARGE = np.array([int(p["x"]) * int(p["y"]) * int(p["tile"]) > 4096 for p in POOL])
WRONG_MODE = np.array([p["mode"] == "b" for p in POOL])


def measured(failed: NDArray[np.bool_], count: int, seed: int = 0) -> NDArray[np.float64]:
    model = FailureModel(ENCODING.sizes, FEATURES, UNKNOWN)
    rows = np.random.default_rng(seed).permutation(len(POOL))[:count]
    model.fit(FEATURES[rows], UNKNOWN[rows], failed[rows])
    return model.p_failure(FEATURES, UNKNOWN)


def test_large_sizes_are_expected_to_fail_first() -> None:
    before = FailureModel(ENCODING.sizes, FEATURES, UNKNOWN).p_failure(FEATURES, UNKNOWN)
    assert auroc(before, TOO_LARGE) > 0.9
    assert before.mean() < 0.2


@pytest.mark.parametrize("failed", [TOO_LARGE, WRONG_MODE], ids=["a product", "a mode"])
def test_twenty_five_measurements_show_the_pattern(failed: NDArray[np.bool_]) -> None:
    scores = [auroc(measured(failed, 25, seed), failed) for seed in range(5)]
    assert np.mean(scores) > 0.9


def test_what_never_fails_is_soon_expected_to_run() -> None:
    assert measured(np.zeros(len(POOL), dtype=bool), 40).max() < 0.2


def test_other_devices_decide_where_nothing_was_measured() -> None:
    shares = np.where(WRONG_MODE, 1.0, 0.0)
    model = FailureModel(ENCODING.sizes, FEATURES, shares)
    p_failure = model.p_failure(FEATURES, shares)
    assert p_failure[WRONG_MODE].min() > 0.7
    assert p_failure[~WRONG_MODE].max() < 0.3
    # They also show the pattern to configurations that they lack.
    assert auroc(model.p_failure(FEATURES, UNKNOWN), WRONG_MODE) > 0.95


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(POOL) - 1), st.booleans()), max_size=30))
def test_the_order_of_measurements_does_not_matter(outcomes: list[tuple[int, bool]]) -> None:
    chances = []
    for order in (outcomes, outcomes[::-1]):
        model = FailureModel(ENCODING.sizes, FEATURES, UNKNOWN)
        rows = np.array([row for row, _ in order], dtype=np.intp)
        model.fit(FEATURES[rows], UNKNOWN[rows], np.array([f for _, f in order], dtype=bool))
        chances.append(model.p_failure(FEATURES, UNKNOWN))
    np.testing.assert_allclose(chances[0], chances[1], atol=1e-4)
    assert ((chances[0] > 0) & (chances[0] < 1)).all()
