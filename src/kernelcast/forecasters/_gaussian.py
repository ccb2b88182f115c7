"""Gaussian-process regression over the rows of one fixed matrix of features.

The covariance of two rows is exp(-sum_j w_j |x_j - x'_j|), plus terms linear in given columns and a
constant, in units of an amplitude that has a closed form. This covariance is rough, as kernel times
are: one step in one parameter may change the time by a factor.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

_JITTER = 1e-6
_PRIOR_NOISE = 0.02
_LEAST_VARIANCE = 1e-9
_FIT_STEPS = 12


class GaussianProcess:
    """Predicts targets at all rows of `features` from some rows; rows are named by their index.

    `fit` sets the logarithms of weights and noise, which have normal priors (maximum a posteriori).
    `condition` prepares the posterior over candidate rows, `extend` adds one observed row to it,
    and `posterior` evaluates it for any targets.
    """

    def __init__(
        self,
        features: Floats,
        weights: Floats | None = None,
        linear: Floats | None = None,
        constant_variance: float = 0.0,
        amplitude_prior: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        """Set the priors: `linear` is scaled by its prior, the amplitude's is (count, value)."""
        columns = features.shape[1]
        if weights is None:
            weights = np.full(columns, columns**-0.5)
        self._features = features
        self._linear = np.zeros((len(features), 0)) if linear is None else linear
        self._constant = constant_variance
        self._amplitude_weight, self._amplitude_guess = amplitude_prior
        self._prior = np.log(np.append(weights, _PRIOR_NOISE))
        self.log_hyper = self._prior.copy()
        self._rows: Rows = np.zeros(0, dtype=np.intp)
        self._candidates: Rows = np.zeros(0, dtype=np.intp)
        self._factor: Floats = np.zeros((0, 0))  # lower Cholesky factor over the rows
        self._whitened: Floats = np.zeros((0, 0))  # factor^-1 times covariance with the candidates
        self._variance: Floats = np.zeros(0)  # of the candidates, in units of the amplitude

    def fit(self, rows: Rows, targets: Floats) -> None:
        """Set weights and noise, starting from the last fit."""
        distances = self._distances(rows)
        fixed = self._fixed_covariance(rows, rows)
        optimum = minimize(
            self.loss,
            self.log_hyper,
            args=(distances, fixed, targets),
            jac=True,
            method="L-BFGS-B",
            bounds=[(-9.0, 4.0)] * (len(self.log_hyper) - 1) + [(-9.0, 0.0)],
            options={"maxiter": _FIT_STEPS},
        )
        self.log_hyper = np.asarray(optimum.x, dtype=np.float64)

    def loss(
        self, log_hyper: Floats, distances: Floats, fixed: Floats, targets: Floats
    ) -> tuple[float, Floats]:
        """Return the negative log posterior of the hyperparameters, and its gradient."""
        count = len(targets)
        weights, noise = np.exp(log_hyper[:-1]), np.exp(log_hyper[-1])
        rough = np.exp(-(distances @ weights)).reshape(count, count)
        covariance = rough + fixed
        covariance.flat[:: count + 1] += noise + _JITTER
        try:
            factor = cholesky(covariance, lower=True, check_finite=False)
        except LinAlgError:
            return 1e10, np.zeros_like(log_hyper)
        solved = cho_solve((factor, True), targets, check_finite=False)
        amplitude = self._amplitude(float(targets @ solved), count)
        total = count + self._amplitude_weight
        value = 0.5 * total * np.log(amplitude) + np.log(np.diag(factor)).sum()
        inverse = cho_solve((factor, True), np.eye(count), check_finite=False)
        slope = 0.5 * (inverse - np.outer(solved, solved) / amplitude)
        gradient = np.empty_like(log_hyper)
        gradient[:-1] = -((slope * rough).ravel() @ distances) * weights
        gradient[-1] = np.trace(slope) * noise
        off = log_hyper - self._prior
        return float(value + 0.5 * off @ off), gradient + off

    def _amplitude(self, squares: float, count: int) -> float:
        prior = self._amplitude_weight * self._amplitude_guess
        return (squares + prior + 1e-12) / (count + self._amplitude_weight)

    def closeness(self, rows: Rows, others: Rows) -> Floats:
        """Return the rough part of the covariance: 1 for the same row, less for distant ones."""
        weights = np.exp(self.log_hyper[:-1])
        return np.exp(
            -cdist(self._features[rows] * weights, self._features[others] * weights, "cityblock")
        )

    def _distances(self, rows: Rows) -> Floats:
        chosen = self._features[rows]
        return np.abs(chosen[:, None] - chosen[None]).reshape(len(rows) ** 2, -1)

    def _fixed_covariance(self, rows: Rows, others: Rows) -> Floats:
        return self._linear[rows] @ self._linear[others].T + self._constant

    def _covariance(self, rows: Rows, others: Rows) -> Floats:
        return self.closeness(rows, others) + self._fixed_covariance(rows, others)

    def _own_variance(self, rows: Rows) -> Floats:
        own: Floats = 1.0 + self._constant + (self._linear[rows] ** 2).sum(axis=1)
        return own

    @property
    def _noise(self) -> float:
        return float(np.exp(self.log_hyper[-1])) + _JITTER

    def condition(self, rows: Rows, candidates: Rows) -> None:
        """Prepare the posterior at `candidates` from targets observed at `rows`."""
        covariance = self._covariance(rows, rows)
        covariance.flat[:: len(rows) + 1] += self._noise
        self._rows, self._candidates = rows, candidates
        self._factor = cholesky(covariance, lower=True, check_finite=False)
        self._whitened = solve_triangular(
            self._factor, self._covariance(rows, candidates), lower=True, check_finite=False
        )
        self._variance = self._own_variance(candidates) - (self._whitened**2).sum(axis=0)

    def extend(self, row: int) -> None:
        """Add one observed row. The result is that of `condition` on all rows, at a lower cost."""
        new = np.array([row], dtype=np.intp)
        left = solve_triangular(
            self._factor, self._covariance(self._rows, new)[:, 0], lower=True, check_finite=False
        )
        rest = self._own_variance(new)[0] + self._noise - left @ left
        corner = float(np.sqrt(max(rest, self._noise + _JITTER)))
        factor = np.pad(self._factor, (0, 1))
        factor[-1] = np.append(left, corner)
        added = (self._covariance(new, self._candidates)[0] - left @ self._whitened) / corner
        self._rows, self._factor = np.append(self._rows, new), factor
        self._whitened = np.vstack([self._whitened, added])
        self._variance = self._variance - added**2

    def posterior(self, targets: Floats) -> tuple[Floats, Floats]:
        """Return mean and standard deviation at each candidate, without measurement noise."""
        solved = solve_triangular(self._factor, targets, lower=True, check_finite=False)
        amplitude = self._amplitude(float(solved @ solved), len(targets))
        variance = np.maximum(self._variance, _LEAST_VARIANCE) * amplitude
        return solved @ self._whitened, np.sqrt(variance)

    def left_out(self, targets: Floats) -> tuple[Floats, Floats]:
        """Return each target's residual and predicted deviation, given all others."""
        inverse = cho_solve((self._factor, True), np.eye(len(targets)), check_finite=False)
        solved = inverse @ targets
        amplitude = self._amplitude(float(targets @ solved), len(targets))
        diagonal = np.diag(inverse)
        return solved / diagonal, np.sqrt(amplitude / diagonal)
