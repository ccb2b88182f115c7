from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import approx_fprime
from scipy.spatial.distance import cdist

from kernelcast.forecasters._gaussian import GaussianProcess

Floats = NDArray[np.float64]


def features(rows: int = 40, columns: int = 3, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=(rows, columns))


def targets_at(x: Floats) -> Floats:
    values: Floats = np.abs(x[:, 0]) + 0.3 * x[:, 1]
    return values


def rich(x: Floats) -> GaussianProcess:
    """Every term of the covariance is there."""
    return GaussianProcess(
        x,
        weights=np.array([0.8, 0.3, 0.1]),
        linear=0.2 * x[:, :2],
        constant_variance=4.0,
        amplitude_prior=(5.0, 0.5),
    )


def test_posterior_is_that_of_the_dense_formula() -> None:
    x = features()
    process = rich(x)
    rows, rest = np.arange(12), np.arange(12, 40)
    y = targets_at(x[rows])
    process.condition(rows)
    process.look(rest)
    mean, std = process.posterior(y)

    weights = np.array([0.8, 0.3, 0.1])
    everything = (
        np.exp(-cdist(x * weights, x * weights, "cityblock")) + 0.04 * x[:, :2] @ x[:, :2].T + 4.0
    )
    known = everything[:12, :12] + (0.02 + 1e-6) * np.eye(12)
    across = everything[:12, 12:]
    inverse = np.linalg.inv(known)
    amplitude = (y @ inverse @ y + 5.0 * 0.5) / (12 + 5.0)
    covariance = everything[12:, 12:] - across.T @ inverse @ across
    np.testing.assert_allclose(mean, across.T @ inverse @ y, rtol=1e-8)
    np.testing.assert_allclose(std, np.sqrt(amplitude * np.diag(covariance)), rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 15), st.integers(1, 6))
def test_rows_added_one_by_one_give_the_posterior_of_all(seed: int, first: int, more: int) -> None:
    x = features(seed=seed)
    order = np.random.default_rng(seed).permutation(len(x))
    rows = order[: first + more]
    every = np.arange(len(x))
    grown, whole = rich(x), rich(x)
    grown.condition(rows[:first])
    grown.look(every)
    for row in rows[first:]:
        grown.extend(int(row))
    whole.condition(rows)
    whole.look(every)
    y = targets_at(x[rows])
    for one, other in zip(grown.posterior(y), whole.posterior(y), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("make", [rich, GaussianProcess])
def test_the_gradient_is_that_of_the_loss(make: type[GaussianProcess]) -> None:
    x = features(15)
    process = make(x)
    rows = np.arange(15)
    rest = (
        process._distances(rows),
        process._fixed_covariance(rows, rows),
        targets_at(x),
    )

    def value(log_hyper: Floats) -> float:
        return process.loss(log_hyper, *rest)[0]

    for seed in range(3):
        at = process.log_hyper + np.random.default_rng(seed).normal(size=4)
        numeric = approx_fprime(at, value, 1e-6)
        np.testing.assert_allclose(process.loss(at, *rest)[1], numeric, rtol=1e-3, atol=1e-4)


def test_a_fit_finds_which_column_matters() -> None:
    x = features(60)
    process = GaussianProcess(x)
    process.fit(np.arange(60), 3.0 * np.sin(2 * x[:, 1]))
    weights = np.exp(process.log_hyper[:-1])
    assert weights[1] > 3 * max(weights[0], weights[2])


def test_a_fit_lowers_the_loss() -> None:
    x = features(30)
    process = rich(x)
    rows = np.arange(30)
    y = targets_at(x)
    rest = (process._distances(rows), process._fixed_covariance(rows, rows), y)
    before = process.loss(process.log_hyper, *rest)[0]
    process.fit(rows, y)
    assert process.loss(process.log_hyper, *rest)[0] < before - 1


def test_what_is_left_out_is_predicted_as_if_it_had_never_been_there() -> None:
    x = features(20)
    process = GaussianProcess(x)
    rows = np.arange(20)
    y = targets_at(x)
    process.condition(rows)
    process.look(rows)
    residual, std = process.left_out(y)
    without = GaussianProcess(x)
    without.condition(rows[1:])
    without.look(rows[:1])
    mean, _ = without.posterior(y[1:])
    assert residual[0] == pytest.approx(y[0] - mean[0])
    assert (std > 0).all()


def test_it_is_surer_near_what_it_knows() -> None:
    x = np.linspace(0, 10, 101)[:, None]
    process = GaussianProcess(x)
    process.condition(np.arange(11))
    process.look(np.arange(101))
    _, std = process.posterior(np.sin(x[:11, 0]))
    assert (np.diff(std[10:]) > 0).all()
    assert std[-1] > 5 * std[10]


def test_the_same_target_everywhere_breaks_nothing() -> None:
    x = features(10)
    process = GaussianProcess(x)
    rows = np.arange(10)
    process.fit(rows, np.zeros(10))
    process.condition(rows)
    process.look(rows)
    mean, std = process.posterior(np.zeros(10))
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
