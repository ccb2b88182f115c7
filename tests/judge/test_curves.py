"""Curves of best so far: of a whole run, drawn out to one length, and their mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kernelcast.events import Measured
from kernelcast.farm.local import LocalFarm
from kernelcast.judge.curves import best_so_far, drawn_out, mean_interval
from kernelcast.store import Store
from kernelcast.types import Budget
from tests.test_search import Flattering, make_parts, start

values = st.floats(-8.0, 8.0, allow_nan=False)


def test_a_curve_rises_only_by_second_measurements(tmp_path: Path) -> None:
    with Store.open(tmp_path / "runs.db") as store:
        search = start(store, make_parts(farm=LocalFarm(Flattering())), name="x")
        result = search.run(Budget(measurements=20))
        run = store.open_run("x")
        events = [each for each in run.events("measured") if isinstance(each, Measured)]
        curve = best_so_far(run)
    assert len(curve) == result.state.measured == 20
    assert curve == sorted(curve)
    assert curve[-1] == result.log2_speedup > 0.0
    confirmed = [each.confirmed_log2 for each in events if each.confirmed_log2 is not None]
    assert {*curve} <= {0.0, *confirmed}
    first = [each.measurement.log2_speedup for each in events if each.purpose == "search"]
    assert curve[-1] < max(each for each in first if each is not None)


@given(st.lists(st.lists(values, min_size=1, max_size=9), min_size=1, max_size=5))
def test_who_ended_early_keeps_what_was_found(curves: list[list[float]]) -> None:
    rows = drawn_out(curves, 9)
    assert rows.shape == (len(curves), 9)
    for row, curve in zip(rows.tolist(), curves, strict=True):
        assert row[: len(curve)] == curve
        assert {*row[len(curve) :]} <= {curve[-1]}


@given(st.lists(values, min_size=2, max_size=30), st.sampled_from((0.8, 0.95, 0.99)))
def test_the_interval_of_a_mean_is_students(rows: list[float], confidence: float) -> None:
    mean, low, high = mean_interval(rows, confidence)
    assert mean == pytest.approx(np.mean(rows))
    if np.std(rows) > 1e-6:
        expected = stats.t.interval(confidence, len(rows) - 1, np.mean(rows), stats.sem(rows))
        assert (low, high) == pytest.approx(expected)


def test_of_one_row_nothing_is_known_but_the_row() -> None:
    mean, low, high = mean_interval([[1.0, 2.0]])
    assert mean.tolist() == [1.0, 2.0]
    assert np.isneginf(low).all()
    assert np.isposinf(high).all()
