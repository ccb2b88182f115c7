"""A forecaster corrected by the run's own outcomes: widths, bias, P(failure), coverage.

Measured kernels show a forecaster's errors on this problem, device and proposer. Three corrections
are fitted to them, each shrunk towards no correction, so that ten outcomes cannot spoil a good
forecaster:

- A scale and a shift of the density, by penalised likelihood over a grid. Old errors are forgotten,
  because a forecaster that learns makes fewer of them.
- A beta map of P(failure): logit -> a ln p - b ln(1 - p) + c, by a penalised logistic fit.
- The width that keeps the 80% interval's coverage, updated with each outcome (adaptive conformal
  inference).

A policy chooses what to measure by the forecasts. To correct this bias, each outcome is weighted by
the inverse of the probability of its choice. Audits have the largest weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from kernelcast import plugins
from kernelcast.certainty import consult
from kernelcast.distribution import Distribution
from kernelcast.protocols import Forecaster
from kernelcast.types import FailureKind, Forecast, Observation, Query, Spend

Floats = NDArray[np.float64]

_DEFAULT: Mapping[str, Any] = {"name": "trees"}
_SCALES = 2.0 ** np.linspace(-1.5, 4.0, 23)
_SHIFTS = np.array([-1.0, -0.6, -0.35, -0.2, -0.1, -0.05, 0.0, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0])
_SCALE_PRIOR = 0.7  # standard deviation of ln scale before anything is known
_SHIFT_PRIOR = 0.3  # of the shift, in octaves
# Share and width of the outliers, which bound the effect of an outcome far off the forecast.
_OUTLIER_SHARE = 0.02
_OUTLIER_WIDTH = 4.0
_HALF_TRUSTED = 40  # outcomes after which half of the correction is applied
_MEMORY = 0.93  # factor on the weight of an outcome with each later one
_BETA_PRIOR = 0.5
_MOST_WEIGHT = 5.0
_LEAST_CHANCE = 1e-3
_COVERAGE = 0.8
_STEP = 0.08
_MOST_TRACKED = math.log(2.0)
_LOG_PRIOR = -(np.log(_SCALES)[:, None] ** 2) / (2.0 * _SCALE_PRIOR**2) - (
    _SHIFTS[None, :] ** 2
) / (2.0 * _SHIFT_PRIOR**2)


class Calibration:
    """The errors of a forecaster, and the corrections fitted to them."""

    def __init__(self) -> None:
        self._log_likelihood = np.zeros_like(_LOG_PRIOR)
        self._chances: list[tuple[float, float, float]] = []
        self._tracked = 0.0
        self._timed = 0
        self.scale, self.shift = 1.0, 0.0
        self.beta = np.array([1.0, 1.0, 0.0])

    def add(self, forecast: Forecast, log2_change: float | None, weight: float) -> None:
        """Add one outcome: the log2 speedup against the anchor, or None for a failure."""
        weight = min(weight, _MOST_WEIGHT)
        p_failure = min(max(1.0 - forecast.p_ok, _LEAST_CHANCE), 1.0 - _LEAST_CHANCE)
        self._chances.append((p_failure, float(log2_change is None), weight))
        if log2_change is None:
            return
        low, high = self.density(forecast.distribution).interval(_COVERAGE)
        missed = not low <= log2_change <= high
        self._tracked += _STEP * weight * (missed - (1.0 - _COVERAGE))
        self._tracked = min(max(self._tracked, -_MOST_TRACKED), _MOST_TRACKED)
        likelihoods = weight * _log_densities(forecast.distribution, log2_change)
        self._log_likelihood = _MEMORY * self._log_likelihood + likelihoods
        self._timed += 1
        posterior = _LOG_PRIOR + self._log_likelihood
        best = np.unravel_index(int(np.argmax(posterior)), posterior.shape)
        # The best fit to a few outcomes is noisy, so it is applied in part until there are many.
        share = self._timed**2 / (self._timed**2 + _HALF_TRUSTED**2)
        self.scale = float(_SCALES[best[0]] ** share)
        self.shift = float(_SHIFTS[best[1]] * share)

    def refit(self) -> None:
        """Fit the map of P(failure) to the outcomes so far."""
        p, failed, weight = np.array(self._chances).T
        features = np.stack([np.log(p), -np.log1p(-p), np.ones_like(p)])
        none = np.array([1.0, 1.0, 0.0])

        def loss(beta: Floats) -> tuple[float, Floats]:
            logit = beta @ features
            likelihood = weight @ (np.logaddexp(0.0, logit) - failed * logit)
            away = (beta - none) / _BETA_PRIOR**2
            gradient = features @ (weight * (expit(logit) - failed)) + away
            return float(likelihood + 0.5 * (beta - none) @ away), gradient

        bounds = [(0.0, 4.0), (0.0, 4.0), (-6.0, 6.0)]
        self.beta = minimize(loss, self.beta, jac=True, method="L-BFGS-B", bounds=bounds).x

    def density(self, forecast: Distribution) -> Distribution:
        """Return the forecast with corrected scale, shift and width."""
        factor = self.scale * math.exp(self._tracked)
        if factor == 1.0 and not self.shift:
            return forecast
        return forecast.widen(factor).shift(self.shift)

    def failure(self, chances: Mapping[FailureKind, float]) -> dict[FailureKind, float]:
        """Correct the sum of P(failure), and keep the shares of the causes."""
        total = sum(chances.values())
        if total <= 0.0 or not self._chances:
            return dict(chances)
        p = min(max(total, _LEAST_CHANCE), 1.0 - _LEAST_CHANCE)
        corrected = float(expit(self.beta @ np.array([math.log(p), -math.log1p(-p), 1.0])))
        return {kind: chance * corrected / total for kind, chance in chances.items()}


def _log_densities(density: Distribution, outcome: float) -> Floats:
    """Return the log density of the outcome for every scale and shift of the grid."""
    median = density.quantile(0.5)
    unscaled = median + (outcome - _SHIFTS[None, :] - median) / _SCALES[:, None]
    likelihood = density.density(unscaled) / _SCALES[:, None]
    outlier = math.exp(-abs(outcome - median) / _OUTLIER_WIDTH) / (2.0 * _OUTLIER_WIDTH)
    return np.log((1.0 - _OUTLIER_SHARE) * likelihood + _OUTLIER_SHARE * outlier)


class RecalibratedForecaster:
    """Corrects another forecaster (`of`: its name and options) by the outcomes of its forecasts.

    It learns from the forecast in each observation, so a resumed run has the same corrections as an
    uninterrupted one.
    """

    name = "recalibrated"

    def __init__(self, of: Mapping[str, Any] | Forecaster = _DEFAULT) -> None:
        self._inner: Forecaster = (
            plugins.build_stated("forecaster", of) if isinstance(of, Mapping) else of
        )
        self.concurrency = self._inner.concurrency
        self.refreshes = self._inner.refreshes
        self._calibration = Calibration()

    def quote(self, queries: Sequence[Query]) -> Spend:
        """Return the inner forecaster's quote."""
        return self._inner.quote(queries)

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        """Return the corrected forecasts; each keeps the uncorrected one."""
        return [self._corrected(forecast) for forecast in consult(self._inner, queries)]

    def learn(self, observations: Sequence[Observation]) -> None:
        """Add the errors of the observations' forecasts, then let the inner forecaster learn."""
        judged = 0
        for observation in observations:
            forecast = observation.forecast
            # The tie of an objection is not a forecast of the speed.
            if forecast is None or forecast.objection:
                continue
            judged += 1
            raw = forecast.uncorrected or forecast
            log2_speedup = observation.measurement.log2_speedup
            change = None if log2_speedup is None else log2_speedup - raw.anchor_log2_speedup
            self._calibration.add(raw, change, 1.0 / max(observation.chosen, _LEAST_CHANCE))
        if judged:
            self._calibration.refit()
        self._inner.learn(observations)

    def _corrected(self, raw: Forecast) -> Forecast:
        return raw.model_copy(
            update={
                "forecaster": self.name,
                "distribution": self._calibration.density(raw.distribution),
                "failure": self._calibration.failure(raw.failure),
                "uncorrected": raw,
            }
        )
