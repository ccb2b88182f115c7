"""A forecast from the device alone: no kernel is faster than the roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from kernelcast.devices import roofline_s
from kernelcast.distribution import Distribution
from kernelcast.types import FailureKind, Forecast, Observation, Query, Spend

_LEVELS = np.linspace(0.01, 0.99, 33)
_PRIOR_FAILURE = {FailureKind.COMPILE_ERROR: 0.02, FailureKind.WRONG_RESULT: 0.03}


@dataclass(frozen=True)
class RooflineForecaster:
    """Forecasts a wide guess around the anchor, bounded by the device's peaks."""

    spread_log2: float = 1.0
    name: str = "roofline"
    concurrency: int = 0
    refreshes: bool = False

    def quote(self, queries: Sequence[Query]) -> Spend:
        """Return no cost."""
        del queries
        return {}

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        """Return the same bounded guess for every candidate of an anchor."""
        return [self._forecast(query) for query in queries]

    def learn(self, observations: Sequence[Observation]) -> None:
        """Do nothing: a bound does not learn."""

    def _forecast(self, query: Query) -> Forecast:
        bound_s = roofline_s(query.problem, query.device)
        ceiling = math.inf
        if bound_s is not None:
            ceiling = max(0.0, math.log2(query.anchor_runtime_s / bound_s))
        values = np.minimum(self.spread_log2 * ndtri(_LEVELS), ceiling)
        return Forecast(
            forecaster=self.name,
            anchor_id=query.anchor.id,
            anchor_log2_speedup=query.anchor_log2_speedup,
            distribution=Distribution.from_quantiles(_LEVELS, values),
            failure=_PRIOR_FAILURE,
            is_prior=True,
        )
