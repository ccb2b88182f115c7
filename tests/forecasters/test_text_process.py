from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.linalg import cholesky
from scipy.optimize import approx_fprime

from _evolve_pool import pool
from kernelcast.forecasters import _text_process as module
from kernelcast.forecasters._features import Terms, digest
from kernelcast.forecasters._text_process import FEWEST, TextProcess
from kernelcast.scoring import spearman

COMMON = ("for", "(", ")", "=", "0")
WIDTHS = (1, 2, 4, 8, 16)


def kernel(width: int, *, vector: bool, noise: int = 0) -> Terms:
    """A text whose speed is that of its width, and twice as much with vectors."""
    return Terms.of((*COMMON, f"#define M1 {width}", *["vec"] * vector, f"v{noise}"))


def log2_speedup(width: int, *, vector: bool) -> float:
    return math.log2(width) / 2 + vector


def drawn(count: int, seed: int = 0) -> list[tuple[Terms, float]]:
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        width, vector = int(random.choice(WIDTHS)), bool(random.integers(2))
        value = log2_speedup(width, vector=vector) + random.normal(scale=0.1)
        rows.append((kernel(width, vector=vector, noise=number % 7), value))
    return rows


def taught(rows: Sequence[tuple[Terms, float]]) -> TextProcess:
    process = TextProcess()
    for text, value in rows:
        process.add(text, value)
    return process


def medians(process: TextProcess, texts: Sequence[Terms]) -> list[float]:
    return [density.quantile(0.5) for density in process.forecast(texts)]


def test_what_sets_texts_apart_tells_their_speeds() -> None:
    process = taught(drawn(60))
    texts = [kernel(width, vector=vector, noise=99) for width in WIDTHS for vector in (False, True)]
    true = [log2_speedup(width, vector=vector) for width in WIDTHS for vector in (False, True)]
    assert np.abs(np.array(medians(process, texts)) - true).max() < 0.3


def test_an_interval_holds_about_as_often_as_it_says() -> None:
    process, held = TextProcess(), []
    for text, value in drawn(400):
        if len(process) >= 20:
            (density,) = process.forecast([text])
            low, high = density.interval(0.8)
            held.append(low < value < high)
        process.add(text, value)
    assert 0.72 < np.mean(held) < 0.9


def test_what_all_texts_share_changes_nothing() -> None:
    rows = drawn(30)
    text = kernel(4, vector=True)
    plain = medians(taught(rows), [text])

    def longer(short: Terms) -> Terms:
        return Terms(np.append(short.hashes, np.uint32(2**32 - 1)), np.append(short.counts, 1000.0))

    shared = medians(taught([(longer(each), value) for each, value in rows]), [longer(text)])
    assert shared == pytest.approx(plain, abs=1e-9)


def test_texts_that_are_all_the_same_have_one_forecast() -> None:
    process = taught([(kernel(4, vector=True), value) for value in (0.1, 0.2, 0.3, 0.2, 0.2)])
    same, other = process.forecast([kernel(4, vector=True), kernel(16, vector=False)])
    assert same == other
    assert same.quantile(0.5) == pytest.approx(0.2, abs=0.02)


def test_a_forecast_does_not_depend_on_when_it_was_asked_for() -> None:
    asked, silent = TextProcess(), TextProcess()
    for text, value in drawn(40):
        if len(asked) >= FEWEST:
            asked.forecast([text])
        asked.add(text, value)
        silent.add(text, value)
    texts = [kernel(width, vector=True) for width in WIDTHS]
    assert asked.forecast(texts) == silent.forecast(texts)
    assert asked.forecast(texts * 200)[-1] == silent.forecast(texts)[-1]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(12, 40))
def test_texts_added_one_by_one_are_as_if_all_were_observed_at_once(seed: int, count: int) -> None:
    process = taught(drawn(count, seed))
    covariance = process._covariance(process._rows)
    noise = math.exp(process._log_hyper[2])
    covariance.flat[:: count + 1] += noise + module._JITTER
    factor = cholesky(covariance, lower=True)
    targets = np.array(process._speedups) - process._mean
    np.testing.assert_allclose(process._factor, factor, atol=1e-6)
    np.testing.assert_allclose(process._whitened, np.linalg.solve(factor, targets), atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.tuples(*[st.floats(-2.0, 0.9)] * 3))
def test_the_slope_of_the_loss_is_right(seed: int, log_hyper: tuple[float, float, float]) -> None:
    random = np.random.default_rng(seed)
    rows, targets = random.normal(size=(12, 4)), random.normal(size=12)
    compared = module._compare(rows, rows)

    def loss(hyper: NDArray[np.float64]) -> float:
        return module._loss(hyper, *compared, targets)[0]

    at = np.array(log_hyper)
    slope = module._loss(at, *compared, targets)[1]
    near = approx_fprime(at, loss, 1e-6)
    np.testing.assert_allclose(slope, near, rtol=1e-3, atol=1e-3)


def test_a_long_run_is_remembered_in_part() -> None:
    process = taught(drawn(900))
    assert module._KEPT <= len(process) <= module._MOST
    texts = [kernel(1, vector=False), kernel(16, vector=True)]
    slow, fast = medians(process, texts)
    assert fast - slow == pytest.approx(3.0, abs=0.4)


def test_the_texts_of_a_run_order_kernels_that_were_measured_once() -> None:
    """Recorded answers on a C++ problem, in ten random orders: the rest after sixty."""
    answers = [answer for answer in pool("layernorm") if answer.speedup is not None]
    texts = [digest(answer.source, "cpp", None).terms for answer in answers]
    values = [math.log2(answer.speedup) for answer in answers if answer.speedup]
    found = []
    for seed in range(10):
        order = np.random.default_rng(seed).permutation(len(answers)).tolist()
        known, rest = order[:60], order[60:]
        process = taught([(texts[at], values[at]) for at in known])
        forecasts = medians(process, [texts[at] for at in rest])
        found.append(spearman(forecasts, [values[at] for at in rest]))
    assert np.mean(found) > 0.55
    assert min(found) > 0.3
