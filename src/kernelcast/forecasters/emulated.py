"""Forecasts from two estimated times: a GPU emulated on the CPU, and no measurement needed.

The evidence of candidate and anchor has an estimate each (`docs/explanation/emulator.md`). Their
ratio is right more often than any reading of the text, but not exact: true ratios are smaller, and
spread around it by a share of it. The constants come from recorded spaces of five kernels
(`bench/emulator.py` judges each kernel by the constants of the others).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from kernelcast.distribution import Distribution
from kernelcast.types import Forecast, Observation, Query, Spend

SLOPE = 0.9
"""True log2 ratio for each octave of the estimated one."""
FREEDOM = 3.0
"""Degrees of freedom of the errors, which follow Student's t."""
LEAST_SCALE_LOG2, SCALE_GROWTH = 0.27, 0.2
"""Scale of the errors between kernels of equal estimates, and what each octave adds."""
_PRIOR_COUNT = 12.0  # measurements of a run that weigh as much as the recorded spaces
_KNOWS_NOTHING_LOG2 = 2.0
_LEVELS = np.concatenate([[1e-4, 1e-3, 0.01], np.arange(1, 20) / 20, [0.99, 1 - 1e-3, 1 - 1e-4]])
_PLACES = stdtrit(FREEDOM, _LEVELS)
_MEDIAN_ERROR = float(stdtrit(FREEDOM, 0.75))  # in scales


class EmulatedForecaster:
    """Forecasts the ratio of two estimates, with the errors that estimates have.

    Measurements of the run widen or narrow the errors.
    """

    name = "emulated"
    concurrency = 0
    refreshes = True

    def __init__(self) -> None:
        self._offsets: list[float] = []

    def quote(self, queries: Sequence[Query]) -> Spend:
        """Return no cost: the estimates are part of the evidence."""
        del queries
        return {}

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        """Return one forecast per query, in order; a guess if a kernel is not emulated."""
        return [self._forecast(query) for query in queries]

    def learn(self, observations: Sequence[Observation]) -> None:
        """Note how far each measured kernel is from its estimate."""
        for observation in observations:
            log2_speedup = observation.measurement.log2_speedup
            evidence = observation.evidence
            estimate = None if evidence is None else evidence.estimated_log2_s
            if log2_speedup is not None and estimate is not None:
                self._offsets.append(log2_speedup + estimate)

    def _forecast(self, query: Query) -> Forecast:
        ratio = estimated_log2_ratio(query)
        wide = Distribution.normal(0.0, _KNOWS_NOTHING_LOG2)
        return Forecast(
            forecaster=self.name,
            anchor_id=query.anchor.id,
            anchor_log2_speedup=query.anchor_log2_speedup,
            distribution=wide if ratio is None else self._density(ratio),
            rationale=_reason(query, ratio),
            is_prior=ratio is None,
        )

    def reconciled(self, query: Query, forecast: Forecast) -> Forecast:
        """Return a forecast that knew no estimates, with them: two independent sources."""
        ratio = estimated_log2_ratio(query)
        if ratio is None:
            return forecast
        return forecast.model_copy(
            update={
                "distribution": forecast.distribution.product(self._density(ratio)),
                "rationale": f"{_reason(query, ratio)}; {forecast.rationale}",
                "is_prior": False,
            }
        )

    def _density(self, ratio: float) -> Distribution:
        places = SLOPE * ratio + self._scale(ratio) * _PLACES
        return Distribution.from_quantiles(_LEVELS, places)

    def _scale(self, ratio: float) -> float:
        """Return the scale of the errors, corrected by this run's errors about their median."""
        scale = LEAST_SCALE_LOG2 + SCALE_GROWTH * abs(ratio)
        if len(self._offsets) < 2:
            return scale
        errors = np.abs(np.array(self._offsets) - np.median(self._offsets))
        own, count = float(np.median(errors)) / _MEDIAN_ERROR, len(errors)
        return (_PRIOR_COUNT * scale + count * own) / (_PRIOR_COUNT + count)


def estimated_log2_ratio(query: Query) -> float | None:
    """Return the estimated log2 speedup of the candidate against the anchor; None if unknown."""
    if query.evidence is None or query.anchor_evidence is None:
        return None
    candidate, anchor = query.evidence.estimated_log2_s, query.anchor_evidence.estimated_log2_s
    return None if candidate is None or anchor is None else anchor - candidate


def _reason(query: Query, ratio: float | None) -> str:
    if ratio is None:
        return "not emulated"
    assert query.evidence is not None
    assert query.anchor_evidence is not None
    now, before = (one.emulated[0].bound_by for one in (query.evidence, query.anchor_evidence))
    bound = f"bound by {now}" if now == before else f"bound by {now}, before by {before}"
    return f"emulated: {2.0**ratio:.2f}x as fast, {bound}"
