"""Softmax regression about a prior, by Newton's method."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_STEPS = 12
_ENOUGH = 1e-6
_LARGEST_STEP = 2.0


def mode(
    matrix: Floats,
    happened: NDArray[np.floating] | NDArray[np.bool_],
    mean: Floats,
    precision: Floats,
    *,
    offsets: Floats | float = 0.0,
    weight: float = 1.0,
) -> Floats:
    """Return the most probable weights, one row per outcome but the first.

    Args:
        matrix: The features of each example.
        happened: Each outcome but the first, by column: whether it happened, or its share.
        mean: The weights before any example.
        precision: That of the weights, for each feature.
        offsets: Log odds of each outcome against the first, before the weights.
        weight: Of one example.
    """
    weights, (outcomes, features) = mean, mean.shape
    for _ in range(_STEPS):
        chance = chances(offsets + matrix @ weights.T)
        slope = weight * ((happened - chance).T @ matrix) - precision * (weights - mean)
        bend = np.diag(np.tile(precision, outcomes))
        for one in range(outcomes):
            for other in range(outcomes):
                share = weight * chance[:, one] * ((one == other) - chance[:, other])
                at = one * features, other * features
                bend[at[0] : at[0] + features, at[1] : at[1] + features] += (
                    matrix.T * share
                ) @ matrix
        step = np.linalg.solve(bend, slope.ravel()).reshape(weights.shape)
        # A long step may overshoot: the regression bends less far from its mode.
        largest = float(np.abs(step).max())
        weights = weights + step / max(1.0, largest / _LARGEST_STEP)
        if largest < _ENOUGH:
            break
    return weights


def chances(odds: Floats) -> Floats:
    """Return the probabilities of all outcomes but the first, whose log odds are 0."""
    highest = np.maximum(odds.max(axis=1, keepdims=True), 0.0)
    raised = np.exp(odds - highest)
    return np.asarray(raised / (raised.sum(axis=1, keepdims=True) + np.exp(-highest)))
