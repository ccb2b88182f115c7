"""A Gaussian process over texts: what the measured kernels of a run say of others like them.

A text is the bag of its canonical tokens. Counts are compressed, and each token is scaled by how
much it varies among the measured texts, so that what all of them share does not count. The
covariance of two texts is exp(-distance / length), plus a part that is linear in the tokens. It is
rough, as kernel times are: one other constant may change the time by a factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular
from scipy.linalg.lapack import dpotri
from scipy.optimize import minimize

from kernelcast.distribution import Distribution
from kernelcast.forecasters._features import Terms
from kernelcast.forecasters._gaussian import HEAVY_LEVELS, HEAVY_PLACES, Floats

FEWEST = 4  # measured texts before the process is asked
_MOST, _KEPT = 384, 288  # measured texts: of so many, so many of the latest are kept
_AT_ONCE = 256  # texts that are forecast in one array
_GROWTH = 1.1  # of the measured texts, after which scales and hyperparameters are set anew
_FIT_STEPS = 15
_MOST_DEVIATIONS = 3.0
_JITTER = 1e-6
_CONSTANT_VARIANCE = 1.0  # of the mean, in units of the amplitude
_PRIOR = np.log([1.0, 1.0, 0.1])  # of the linear part, the length and the noise
_PRIOR_SPREAD = np.array([1.5, 0.7, 1.5])
_BOUNDS = [(-6.0, 4.0), (-3.0, 3.0), (-7.0, 1.0)]
_AMPLITUDE_WEIGHT, _AMPLITUDE_LOG2 = 4.0, 1.0


@dataclass(frozen=True, eq=False)
class _Scale:
    """How texts become rows, of which the measured ones have a mean square of 1."""

    columns: NDArray[np.uint32]
    usual: Floats
    spread: Floats
    size: float = 1.0

    @classmethod
    def of(cls, texts: Sequence[Terms]) -> _Scale:
        columns = np.unique(np.concatenate([text.hashes for text in texts]))
        counts = _counts(texts, columns)
        spread = counts.std(axis=0)
        varies = spread > _JITTER
        scale = cls(columns[varies], counts.mean(axis=0)[varies], spread[varies])
        square = float((scale.rows(texts) ** 2).sum(axis=1).mean())
        return replace(scale, size=math.sqrt(square) or 1.0)

    def rows(self, texts: Sequence[Terms]) -> Floats:
        apart = (_counts(texts, self.columns) - self.usual) / self.spread
        return np.asarray(np.clip(apart, -_MOST_DEVIATIONS, _MOST_DEVIATIONS) / self.size)


def _counts(texts: Sequence[Terms], columns: NDArray[np.uint32]) -> Floats:
    """Compressed counts of the tokens that have a column."""
    counts = np.zeros((len(texts), len(columns)))
    if not columns.size:
        return counts
    for row, text in zip(counts, texts, strict=True):
        places = np.minimum(np.searchsorted(columns, text.hashes), len(columns) - 1)
        known = columns[places] == text.hashes
        row[places[known]] = np.log1p(text.counts[known])
    return counts


class TextProcess:
    """Forecasts the log2 speedups of texts by those of measured ones, the latest few hundred.

    A forecast depends on the order of the measurements alone, not on when it was asked for.
    """

    def __init__(self) -> None:
        self._texts: list[Terms] = []
        self._speedups: list[float] = []
        self._log_hyper: Floats = _PRIOR
        self._next_refresh = FEWEST

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, text: Terms, log2_speedup: float) -> None:
        """Learn the speedup of a text."""
        self._texts.append(text)
        self._speedups.append(log2_speedup)
        if len(self._texts) > _MOST:
            del self._texts[:-_KEPT], self._speedups[:-_KEPT]
            self._next_refresh = _KEPT
        if len(self._texts) >= self._next_refresh:
            self._next_refresh = math.ceil(len(self._texts) * _GROWTH)
            self._refresh()
        elif len(self._texts) > FEWEST:
            self._extend(text, log2_speedup)

    def forecast(self, texts: Sequence[Terms]) -> list[Distribution]:
        """Return the distribution of each text's log2 speedup.

        At least `FEWEST` texts are measured.
        """
        blocks = [texts[at : at + _AT_ONCE] for at in range(0, len(texts), _AT_ONCE)]
        return [density for block in blocks for density in self._forecast(block)]

    def _forecast(self, texts: Sequence[Terms]) -> list[Distribution]:
        rows = self._scale.rows(texts)
        left = self._whiten(self._covariance(rows))
        noise = float(np.exp(self._log_hyper[2]))
        variance = np.maximum(self._own_variance(rows) - (left**2).sum(axis=0), noise)
        squares = float(self._whitened @ self._whitened)
        std = np.sqrt(variance * _amplitude(squares, len(self._texts)))
        mean = self._mean + left.T @ self._whitened
        places = mean[:, None] + std[:, None] * np.array(HEAVY_PLACES)
        return Distribution.all_from_quantiles(HEAVY_LEVELS, places)

    def _refresh(self) -> None:
        """Set scales and hyperparameters, and observe all that was measured."""
        self._scale = _Scale.of(self._texts)
        self._rows = self._scale.rows(self._texts)
        speedups = np.array(self._speedups)
        self._mean = float(speedups.mean())
        targets = speedups - self._mean
        fitted = minimize(
            _loss,
            self._log_hyper,
            args=(*_compare(self._rows, self._rows), targets),
            jac=True,
            method="L-BFGS-B",
            bounds=_BOUNDS,
            options={"maxiter": _FIT_STEPS},
        )
        self._log_hyper = np.asarray(fitted.x, dtype=np.float64)
        covariance = self._covariance(self._rows)
        covariance.flat[:: len(targets) + 1] += np.exp(self._log_hyper[2]) + _JITTER
        self._factor = cholesky(covariance, lower=True, check_finite=False)
        self._whitened = self._whiten(targets)

    def _extend(self, text: Terms, log2_speedup: float) -> None:
        """Observe one more text. It costs less than to observe all again."""
        row = self._scale.rows([text])
        left = self._whiten(self._covariance(row)[:, 0])
        own = float(self._own_variance(row)[0]) + _JITTER
        corner = math.sqrt(max(own - float(left @ left), _JITTER))
        size = len(left)
        factor = np.zeros((size + 1, size + 1))
        factor[:size, :size], factor[size, :size], factor[size, size] = self._factor, left, corner
        last = (log2_speedup - self._mean - float(left @ self._whitened)) / corner
        self._factor, self._whitened = factor, np.append(self._whitened, last)
        self._rows = np.vstack((self._rows, row))

    def _covariance(self, rows: Floats) -> Floats:
        """Return the covariance of the observed rows with others, without noise."""
        linear, length, _ = np.exp(self._log_hyper)
        inner, distances = _compare(self._rows, rows)
        covariance: Floats = linear * inner + np.exp(-distances / length) + _CONSTANT_VARIANCE
        return covariance

    def _own_variance(self, rows: Floats) -> Floats:
        linear, _, noise = np.exp(self._log_hyper)
        own: Floats = linear * (rows**2).sum(axis=1) + 1.0 + _CONSTANT_VARIANCE + noise
        return own

    def _whiten(self, values: Floats) -> Floats:
        whitened: Floats = solve_triangular(self._factor, values, lower=True, check_finite=False)
        return whitened


def _compare(rows: Floats, others: Floats) -> tuple[Floats, Floats]:
    """Return the inner product and the distance of each row with each of the others."""
    inner = rows @ others.T
    squares = (rows**2).sum(axis=1)[:, None] + (others**2).sum(axis=1) - 2.0 * inner
    return inner, np.sqrt(np.maximum(squares, 0.0))


def _amplitude(squares: float, count: int) -> float:
    prior = _AMPLITUDE_WEIGHT * _AMPLITUDE_LOG2**2
    return (squares + prior) / (count + _AMPLITUDE_WEIGHT)


def _loss(
    log_hyper: Floats, inner: Floats, distances: Floats, targets: Floats
) -> tuple[float, Floats]:
    """Return the negative log posterior of the hyperparameters, and its gradient."""
    count = len(targets)
    linear, length, noise = np.exp(log_hyper)
    rough = np.exp(-distances / length)
    covariance = linear * inner + rough + _CONSTANT_VARIANCE
    covariance.flat[:: count + 1] += noise + _JITTER
    try:
        factor = cholesky(covariance, lower=True, check_finite=False)
    except LinAlgError:
        return 1e10, np.zeros_like(log_hyper)
    solved = cho_solve((factor, True), targets, check_finite=False)
    amplitude = _amplitude(float(targets @ solved), count)
    off = (log_hyper - _PRIOR) / _PRIOR_SPREAD
    determinant = np.log(np.diag(factor)).sum()
    value = 0.5 * (count + _AMPLITUDE_WEIGHT) * np.log(amplitude) + determinant + 0.5 * off @ off
    lower = np.tril(dpotri(factor, lower=1)[0])
    inverse = lower + np.tril(lower, -1).T
    slope = 0.5 * (inverse - np.outer(solved, solved) / amplitude)
    gradient = [
        linear * (slope * inner).sum(),
        (slope * rough * distances).sum() / length,
        noise * np.trace(slope),
    ]
    return float(value), np.array(gradient) + off / _PRIOR_SPREAD
