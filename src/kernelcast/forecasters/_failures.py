"""P(failure) of configurations, by logistic regression over their parameters.

The logarithm of a product is a sum, so a limit on the threads of a block, on registers or on shared
memory is nearly linear in the logarithms of the sizes. Larger sizes are expected to fail first, and
what is measured decides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from kernelcast.forecasters._gaussian import Floats, evenly
from kernelcast.forecasters._regression import mode

Flags = NDArray[np.bool_]

# Mean and standard deviation of each weight before any measurement; features are standardised.
_CONSTANT = (-3.5, 1.5)
_SIZE = (0.8, 0.5)
_OTHER = (0.0, 0.5)
_SHARE = (6.0, 2.0)  # of the share of other devices on which the configuration fails
_KNOWN = (-1.0, 0.7)  # of a result on any other device
_MOST_ELSEWHERE, _ELSEWHERE_WEIGHT = 300, 0.2  # rows of other devices, and the weight of one


class FailureModel:
    """Bayesian logistic regression by its mode; measurements of one pool or template teach it."""

    def __init__(self, sizes: Flags, features: Floats, shares: Floats) -> None:
        """Set the prior from what other devices know.

        Args:
            sizes: For each feature, whether it is the logarithm of a size.
            features: Those of the configurations, one row each.
            shares: The share of other devices on which each fails, nan if none has a result.
        """
        priors = [_CONSTANT, *(_SIZE if size else _OTHER for size in sizes), _SHARE, _KNOWN]
        self._mean, std = np.array(priors).T
        self._precision = std**-2.0
        known = np.flatnonzero(~np.isnan(shares))
        rows = known[evenly(len(known), _MOST_ELSEWHERE)]
        own = slice(0, 1 + len(sizes))
        self._mean[own] = mode(
            _columns(features[rows], shares[rows])[:, own],
            shares[rows, None],
            self._mean[None, own],
            self._precision[own],
            weight=_ELSEWHERE_WEIGHT,
        )[0]
        self._weights = self._mean

    def fit(self, features: Floats, shares: Floats, failed: Flags) -> None:
        """Learn from measured rows, and from no others."""
        columns = _columns(features, shares)
        self._weights = mode(columns, failed[:, None], self._mean[None], self._precision)[0]

    def p_failure(self, features: Floats, shares: Floats) -> Floats:
        """Return P(failure) of rows."""
        chance: Floats = expit(_columns(features, shares) @ self._weights)
        return chance


def _columns(features: Floats, shares: Floats) -> Floats:
    known = ~np.isnan(shares)
    return np.column_stack([np.ones(len(features)), features, np.where(known, shares, 0.0), known])
