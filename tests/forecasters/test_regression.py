"""Regressions find the weights that made their examples, and stay near their prior without any."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from kernelcast.forecasters._regression import chances, mode


def test_weights_of_three_outcomes_are_recovered() -> None:
    rng = np.random.default_rng(0)
    matrix = np.column_stack((np.ones(4000), rng.normal(size=(4000, 2))))
    true = np.array([[0.5, 1.0, -1.0], [-0.5, 0.0, 2.0]])
    others = chances(matrix @ true.T)
    drawn = rng.random((4000, 1)) > np.column_stack((1.0 - others.sum(axis=1), others)).cumsum(
        axis=1
    )
    happened = drawn.sum(axis=1)[:, None] == [1, 2]
    found = mode(matrix, happened, np.zeros((2, 3)), np.full(3, 1e-3))
    assert found == pytest.approx(true, abs=0.2)


def test_it_is_the_mode_of_prior_and_examples_with_shares_offsets_and_weight() -> None:
    rng = np.random.default_rng(1)
    matrix, shares = rng.normal(size=(40, 3)), rng.random(40)
    offsets, mean, precision = rng.normal(size=40), rng.normal(size=3), np.array([0.3, 1.0, 5.0])

    def loss(weights: np.ndarray) -> float:
        p = expit(offsets + matrix @ weights)
        fit = shares @ np.log(p) + (1.0 - shares) @ np.log1p(-p)
        return float(precision @ (weights - mean) ** 2 / 2.0 - 0.2 * fit)

    found = mode(
        matrix, shares[:, None], mean[None], precision, offsets=offsets[:, None], weight=0.2
    )
    assert found[0] == pytest.approx(minimize(loss, mean, tol=1e-10).x, abs=1e-4)


def test_without_examples_the_prior_stays() -> None:
    mean = np.array([[1.0, -2.0]])
    found = mode(np.zeros((0, 2)), np.zeros((0, 1), dtype=bool), mean, np.ones(2))
    assert found.tolist() == mean.tolist()
