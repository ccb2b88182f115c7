"""A cascade of forecasters in order of cost: the next is asked if it may change the decision.

The value of a forecast is the cost of a measurement (device time at the user's rate) times the
chance that it changes the decision to measure. That is the chance that an answer which resolves
`resolution` of the remaining variance moves P(new best) across the policy's threshold.

Answers are pooled, weighted by each stage's past accuracy on measured kernels. An answer that knows
nothing has no weight. After an objection no further stage is asked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import ndtr, ndtri

from kernelcast import plugins
from kernelcast.certainty import consult
from kernelcast.distribution import Distribution
from kernelcast.protocols import Forecaster
from kernelcast.scoring import crps
from kernelcast.types import (
    SMALLEST_CLAIM_LOG2,
    Forecast,
    Observation,
    Query,
    Resource,
    Spend,
    Stage,
    Usage,
)

DEFAULT_STAGES: tuple[Mapping[str, Any], ...] = (
    {"name": "critic"},
    {"name": "roofline"},
    {"name": "trees"},
)
_KNOWS_NOTHING_LOG2 = 1.5  # an answer with a larger standard deviation knows nothing
_PRIOR_CRPS = 0.5
_PRIOR_COUNT = 5.0
_SECONDS_PER_HOUR = 3600.0


@dataclass
class _Skill:
    """The past errors of a stage, shrunk towards a prior."""

    count: float = _PRIOR_COUNT
    crps_sum: float = _PRIOR_COUNT * _PRIOR_CRPS

    @property
    def weight(self) -> float:
        """The weight in the pool: half the error gives four times the weight."""
        return (self.count / self.crps_sum) ** 2


class CascadeForecaster:
    """Asks its `stages` (forecasters, or their names and options) in order while it is worth it.

    `device_usd_per_hour` and `measurement_s` price a measurement. `threshold` is the P(new best)
    below which the policy drops a candidate. A stage is asked, even if it is free, only if the
    chance of another decision is at least `least_flip`.
    """

    name = "cascade"

    def __init__(
        self,
        stages: Sequence[Mapping[str, Any] | Forecaster] = DEFAULT_STAGES,
        device_usd_per_hour: float = 3.0,
        measurement_s: float = 5.0,
        threshold: float = 0.01,
        resolution: float = 0.5,
        least_flip: float = 0.005,
    ) -> None:
        self._stages = [
            plugins.build_stated("forecaster", stage) if isinstance(stage, Mapping) else stage
            for stage in stages
        ]
        self._names = _distinct([stage.name for stage in self._stages])
        self._measurement_usd = device_usd_per_hour * measurement_s / _SECONDS_PER_HOUR
        self._threshold = threshold
        self._resolution = resolution
        self._least_flip = least_flip
        self.concurrency = max(stage.concurrency for stage in self._stages)
        self.refreshes = all(stage.refreshes or not stage.concurrency for stage in self._stages)
        self._skills = {name: _Skill() for name in self._names}

    def quote(self, queries: Sequence[Query]) -> Spend:
        """Return the highest possible cost: every stage asked about every query."""
        total: dict[Resource, float] = {}
        for stage in self._stages:
            for resource, amount in stage.quote(queries).items():
                total[resource] = total.get(resource, 0.0) + amount
        return total

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        """Forecast each query by the stages that are worth asking, one stage at a time."""
        answers: list[list[tuple[Stage, Forecast]]] = [[] for _ in queries]
        for name, stage in zip(self._names, self._stages, strict=True):
            asked = [
                index
                for index, query in enumerate(queries)
                if self._is_worth_asking(stage, query, self._pooled(query, answers[index]))
            ]
            forecasts = consult(stage, [queries[index] for index in asked])
            for index, answer in zip(asked, forecasts, strict=True):
                answers[index].append(self._judged(name, queries[index], answers[index], answer))
        pooled = map(self._pooled, queries, answers)
        return [forecast for forecast in pooled if forecast is not None]

    def learn(self, observations: Sequence[Observation]) -> None:
        """Score each stage's forecasts of the measured kernels, then let every stage learn."""
        for observation in observations:
            log2_speedup = observation.measurement.log2_speedup
            forecast = observation.forecast and (
                observation.forecast.uncorrected or observation.forecast
            )
            if forecast is None or log2_speedup is None:
                continue
            for record in forecast.stages:
                if record.forecaster in self._skills:
                    skill = self._skills[record.forecaster]
                    skill.count += 1.0
                    change = log2_speedup - forecast.anchor_log2_speedup
                    skill.crps_sum += crps(record.distribution, change)
        for stage in self._stages:
            stage.learn(observations)

    def _is_worth_asking(self, stage: Forecaster, query: Query, so_far: Forecast | None) -> bool:
        if so_far is None or not _knows(so_far):
            return True
        if so_far.objection:
            return False
        chance = self._chance_of_another_decision(query, so_far)
        cost_usd = stage.quote([query]).get(Resource.FORECAST_USD, 0.0)
        return chance >= self._least_flip and chance * self._measurement_usd >= cost_usd

    def _chance_of_another_decision(self, query: Query, so_far: Forecast) -> float:
        """Return the chance that the next answer moves P(new best) across the threshold."""
        p_ok = so_far.p_ok
        if p_ok <= self._threshold:
            return 0.0
        goal = self._goal(query) - query.anchor_log2_speedup
        mean, std = so_far.distribution.mean(), so_far.distribution.std()
        left = std * math.sqrt(1.0 - self._resolution)
        moves = std * math.sqrt(self._resolution)
        # The smallest mean at which P(new best) reaches the threshold.
        least_mean = goal + left * float(ndtri(self._threshold / p_ok))
        above = 1.0 - float(ndtr((least_mean - mean) / moves))
        return 1.0 - above if self._is_measured(query, so_far) else above

    def _judged(
        self, name: str, query: Query, before: list[tuple[Stage, Forecast]], answer: Forecast
    ) -> tuple[Stage, Forecast]:
        stage = Stage(
            forecaster=name,
            distribution=answer.distribution,
            p_ok=answer.p_ok,
            p_new_best=self._p_new_best(query, answer),
            objected=bool(answer.objection),
            usage=answer.usage,
        )
        then = self._pooled(query, before)
        now = self._pooled(query, [*before, (stage, answer)])
        if then is not None or stage.objected:
            changed = self._is_measured(query, then) != self._is_measured(query, now)
            stage = stage.model_copy(update={"changed": changed})
        return stage, answer

    def _is_measured(self, query: Query, forecast: Forecast | None) -> bool:
        """Return whether a policy would measure; True if no forecast exists yet."""
        if forecast is None:
            return True
        return not forecast.objection and self._p_new_best(query, forecast) >= self._threshold

    def _pooled(self, query: Query, answers: list[tuple[Stage, Forecast]]) -> Forecast | None:
        """Pool the answers so far, weighted by each stage's accuracy."""
        if not answers:
            return None
        informed = [pair for pair in answers if _knows(pair[1])] or answers
        forecasts = [forecast for _, forecast in informed]
        weights = [self._skills[stage.forecaster].weight for stage, _ in informed]
        total = sum(weights)
        kinds = {kind for forecast in forecasts for kind in forecast.failure}
        return Forecast(
            forecaster=self.name,
            anchor_id=query.anchor.id,
            anchor_log2_speedup=query.anchor_log2_speedup,
            distribution=Distribution.mixture([f.distribution for f in forecasts], weights),
            failure={
                kind: sum(
                    weight * forecast.failure.get(kind, 0.0)
                    for weight, forecast in zip(weights, forecasts, strict=True)
                )
                / total
                for kind in sorted(kinds)
            },
            usage=Usage.total(answer.usage for _, answer in answers),
            unparsed=any(answer.unparsed for _, answer in answers),
            rationale=next((f.rationale for f in reversed(forecasts) if f.rationale), ""),
            objection=next((f.objection for f in forecasts if f.objection), ""),
            stages=tuple(stage for stage, _ in answers),
            is_prior=all(forecast.is_prior for forecast in forecasts),
        )

    def _goal(self, query: Query) -> float:
        incumbent = query.incumbent_log2
        best = query.anchor_log2_speedup if incumbent is None else incumbent
        return best + SMALLEST_CLAIM_LOG2

    def _p_new_best(self, query: Query, forecast: Forecast) -> float:
        return forecast.chance_above(self._goal(query))


def _knows(answer: Forecast) -> bool:
    return answer.distribution.std() < _KNOWS_NOTHING_LOG2


def _distinct(names: Sequence[str]) -> list[str]:
    """Number repeated names: "trees", "trees 2"."""
    return [
        name if names.index(name) == index else f"{name} {names[: index + 1].count(name)}"
        for index, name in enumerate(names)
    ]
