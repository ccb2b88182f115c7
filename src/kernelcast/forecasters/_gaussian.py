"""Gaussian-process regression over the rows of one matrix of features.

The covariance of two rows is exp(-sum_j w_j |x_j - x'_j|), plus terms linear in given columns and a
constant, in units of an amplitude that has a closed form. This covariance is rough, as kernel times
are: one step in one parameter may change the time by a factor.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular
from scipy.linalg.lapack import dpotri, dtrtri
from scipy.optimize import minimize
from scipy.spatial.distance import cdist, squareform

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

# Times have heavier tails than a normal distribution. These are quantiles of Student's t with four
# degrees of freedom, scaled to the middle 68% of a normal.
HEAVY_LEVELS = (0.001, 0.02, 0.158655, 0.5, 0.841345, 0.98, 0.999)
HEAVY_PLACES = (-6.28, -2.63, -1.0, 0.0, 1.0, 2.63, 6.28)

_JITTER = 1e-6
_PRIOR_NOISE = 0.02
_LEAST_VARIANCE = 1e-9
_FIT_STEPS = 12
_ROOM = 16  # rows by which the factor grows


class GaussianProcess:
    """Predicts targets at all rows of `features` from some rows; rows are named by their index.

    `fit` sets the logarithms of weights and noise, which have normal priors (maximum a posteriori).
    `condition` factorises the covariance of the observed rows, `extend` adds one observed row, and
    `look` chooses the candidate rows. `posterior` evaluates the candidates for any targets.
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
        self._amplitude_weight, self._amplitude_guess = amplitude_prior
        self._constant = constant_variance
        self._prior = np.log(np.append(weights, _PRIOR_NOISE))
        self.log_hyper = self._prior.copy()
        self.move(features, linear)
        self._rows: Rows = np.zeros(0, dtype=np.intp)
        # The lower Cholesky factor over the rows, with room for more. The unused part is that of
        # the identity matrix, so that it changes no solution.
        self._factor: Floats = np.zeros((0, 0))
        self._whitened: Floats = np.zeros((0, 0))  # factor^-1 times covariance with the candidates
        self._variance: Floats = np.zeros(0)  # of the candidates, in units of the amplitude

    def move(self, features: Floats, linear: Floats | None = None) -> None:
        """Replace the matrix by one that has the observed rows at the same indices.

        There is no candidate until `look` is called.
        """
        self._features = features
        self._candidates: Rows = np.zeros(0, dtype=np.intp)
        self._linear = np.zeros((len(features), 0)) if linear is None else linear

    def fit(self, rows: Rows, targets: Floats, steps: int = _FIT_STEPS) -> None:
        """Set weights and noise by so many steps from the present ones."""
        optimum = minimize(
            self.loss,
            self.log_hyper,
            args=(self._distances(rows), self._fixed_covariance(rows, rows), targets),
            jac=True,
            method="L-BFGS-B",
            bounds=[(-9.0, 4.0)] * (len(self.log_hyper) - 1) + [(-9.0, 0.0)],
            options={"maxiter": steps},
        )
        self.log_hyper = np.asarray(optimum.x, dtype=np.float64)

    def loss(
        self, log_hyper: Floats, distances: Floats, fixed: Floats, targets: Floats
    ) -> tuple[float, Floats]:
        """Return the negative log posterior of the hyperparameters, and its gradient."""
        count = len(targets)
        weights, noise = np.exp(log_hyper[:-1]), np.exp(log_hyper[-1])
        # Arrays are used again where they can be: new ones of megabytes cost as much as the sums.
        rough = distances @ weights
        np.exp(np.negative(rough, out=rough), out=rough)
        covariance = squareform(rough)
        covariance += fixed
        covariance.flat[:: count + 1] += 1.0 + noise + _JITTER
        try:
            factor = cholesky(covariance, lower=True, check_finite=False)
        except LinAlgError:
            return 1e10, np.zeros_like(log_hyper)
        solved = cho_solve((factor, True), targets, check_finite=False)
        amplitude = self._amplitude(float(targets @ solved), count)
        total = count + self._amplitude_weight
        value = 0.5 * total * np.log(amplitude) + np.log(np.diag(factor)).sum()
        # LAPACK's upper triangle in its order of columns is the lower one in NumPy's of rows.
        slope = dpotri(factor.T, lower=0)[0].T
        square = np.outer(solved, solved, out=covariance)
        square /= amplitude
        slope -= square
        slope *= 0.5
        gradient = np.empty_like(log_hyper)
        # Each pair occurs twice in the covariance.
        rough *= squareform(slope.T, checks=False)
        gradient[:-1] = -2.0 * (rough @ distances) * weights
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
        """Return the distance of each pair of rows in each column."""
        chosen = self._features[rows]
        one, other = np.triu_indices(len(rows), 1)
        distances: Floats = chosen[one]
        distances -= chosen[other]
        return np.abs(distances, out=distances)

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

    def condition(self, rows: Rows, room: int = _ROOM) -> None:
        """Observe `rows`, with room for as many more."""
        covariance = self._covariance(rows, rows)
        covariance.flat[:: len(rows) + 1] += self._noise
        self._rows, count = rows, len(rows)
        self._factor = np.eye(count + room)
        self._factor[:count, :count] = cholesky(covariance, lower=True, check_finite=False)
        self._candidates = np.zeros(0, dtype=np.intp)

    def look(self, candidates: Rows) -> None:
        """Prepare the posterior at `candidates`."""
        self._candidates = candidates
        across = np.zeros((len(self._factor), len(candidates)))
        across[: len(self._rows)] = self._covariance(self._rows, candidates)
        self._whitened = self._whiten(across)
        self._variance = self._own_variance(candidates) - (self._whitened**2).sum(axis=0)

    def _whiten(self, values: Floats) -> Floats:
        """Return factor^-1 times `values`, which may lack the rows of the unused part."""
        missing = len(self._factor) - len(values)
        padded = (
            np.pad(values, [(0, missing)] + [(0, 0)] * (values.ndim - 1)) if missing else values
        )
        whitened: Floats = solve_triangular(self._factor, padded, lower=True, check_finite=False)
        return whitened

    def extend(self, row: int) -> None:
        """Observe one more row. The result is that of `condition` on all, at a lower cost."""
        count = len(self._rows)
        if count == len(self._factor):
            factor = np.eye(count + _ROOM)
            factor[:count, :count] = self._factor
            self._factor = factor
            if len(self._candidates):
                self._whitened = np.pad(self._whitened, ((0, _ROOM), (0, 0)))
        new = np.array([row], dtype=np.intp)
        left = self._whiten(self._covariance(self._rows, new)[:, 0])[:count]
        rest = self._own_variance(new)[0] + self._noise - left @ left
        corner = float(np.sqrt(max(rest, self._noise + _JITTER)))
        self._factor[count, :count], self._factor[count, count] = left, corner
        self._rows = np.append(self._rows, new)
        if len(self._candidates):
            across = self._covariance(new, self._candidates)[0]
            added = (across - left @ self._whitened[:count]) / corner
            self._whitened[count] = added
            self._variance = self._variance - added**2

    def posterior(self, targets: Floats) -> tuple[Floats, Floats]:
        """Return mean and standard deviation at each candidate, without measurement noise."""
        solved = self._whiten(targets)
        amplitude = self._amplitude(float(solved @ solved), len(targets))
        variance = np.maximum(self._variance, _LEAST_VARIANCE) * amplitude
        return solved @ self._whitened, np.sqrt(variance)

    def log_likelihood(self, targets: Floats) -> float:
        """Return the log density of the observed rows' targets, up to a constant of their number.

        The amplitude is integrated out.
        """
        count, weight = len(targets), self._amplitude_weight
        solved = self._whiten(targets)[:count]
        amplitude = self._amplitude(float(solved @ solved), count)
        return float(
            0.5 * weight * np.log(self._amplitude_guess)
            - 0.5 * (count + weight) * np.log(amplitude)
            - np.log(np.diag(self._factor)[:count]).sum()
        )

    def left_out(self, targets: Floats) -> tuple[Floats, Floats]:
        """Return each target's residual and predicted deviation, given all others."""
        count = len(targets)
        solved = self._whiten(targets)[:count]
        amplitude = self._amplitude(float(solved @ solved), count)
        inverse_root, _ = dtrtri(self._factor[:count, :count].T, lower=0)
        diagonal = (inverse_root**2).sum(axis=1)
        return inverse_root @ solved / diagonal, np.sqrt(amplitude / diagonal)


def evenly(count: int, most: int) -> Rows:
    """Return at most `most` of the first `count` integers, evenly spread, with both ends."""
    if count <= most:
        return np.arange(count)
    return np.linspace(0, count - 1, most).astype(np.intp)
