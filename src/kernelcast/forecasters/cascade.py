"""Forecasters in order of cost: the next is asked only if its answer may change the decision.

Hardware is the last stage, and the policy's to ask. What a forecast is worth is what a measurement
costs, device time at the user's rate, times the chance that the decision to measure or not would
come out otherwise: if a stage could resolve `resolution` of the variance that is left, how likely
is it to carry P(new best) across the policy's threshold?

Answers are pooled by what each stage's answers were worth when kernels were measured; one that
knows nothing has no say. A stage that objects is the last to be asked.
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
_KNOWS_NOTHING_LOG2 = 1.5  # a standard deviation from which on an answer is none
_PRIOR_CRPS = 0.5
_PRIOR_COUNT = 5.0
_SECONDS_PER_HOUR = 3600.0


@dataclass
class _Skill:
    """How far off a stage's answers were, shrunk towards a guess."""

    met: float = _PRIOR_COUNT
    crps_sum: float = _PRIOR_COUNT * _PRIOR_CRPS

    @property
    def weight(self) -> float:
        """Its say in the pool: half as far off counts four times as much."""
        return (self.met / self.crps_sum) ** 2


class CascadeForecaster:
    """Asks its `stages` (forecasters, or their names and options) in order, as far as it pays.

    `device_usd_per_hour` and `measurement_s` price a measurement; `threshold` is the P(new best)
    below which the policy drops a candidate, and `least_flip` the smallest chance of another
    decision for which even a free stage is asked.
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
            plugins.build_stated("forecaster", each) if isinstance(each, Mapping) else each
            for each in stages
        ]
        self._names = _distinct([each.name for each in self._stages])
        self._measurement_usd = device_usd_per_hour * measurement_s / _SECONDS_PER_HOUR
        self._threshold = threshold
        self._resolution = resolution
        self._least_flip = least_flip
        self.concurrency = max(each.concurrency for each in self._stages)
        self.refreshes = all(each.refreshes or not each.concurrency for each in self._stages)
        self._skills = {name: _Skill() for name in self._names}

    def quote(self, queries: Sequence[Query]) -> Spend:
        """What asking every stage about every query would cost at most."""
        total: dict[Resource, float] = {}
        for stage in self._stages:
            for resource, amount in stage.quote(queries).items():
                total[resource] = total.get(resource, 0.0) + amount
        return total

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        """Each query by as many stages as it pays to ask; queries go through a stage together."""
        answers: list[list[tuple[Stage, Forecast]]] = [[] for _ in queries]
        for name, stage in zip(self._names, self._stages, strict=True):
            asked = [
                index
                for index, query in enumerate(queries)
                if self._is_worth_asking(stage, query, self._pooled(query, answers[index]))
            ]
            told = consult(stage, [queries[index] for index in asked])
            for index, answer in zip(asked, told, strict=True):
                answers[index].append(self._judged(name, queries[index], answers[index], answer))
        return [self._final(query, stages) for query, stages in zip(queries, answers, strict=True)]

    def learn(self, observations: Sequence[Observation]) -> None:
        """Score what each stage had said of a kernel that was measured, then teach every stage."""
        for observation in observations:
            log2_speedup = observation.measurement.log2_speedup
            forecast = observation.forecast and (
                observation.forecast.uncorrected or observation.forecast
            )
            if forecast is None or log2_speedup is None:
                continue
            for stage in forecast.stages:
                if stage.forecaster in self._skills:
                    skill = self._skills[stage.forecaster]
                    skill.met += 1.0
                    change = log2_speedup - forecast.anchor_log2_speedup
                    skill.crps_sum += crps(stage.distribution, change)
        for each in self._stages:
            each.learn(observations)

    # ------------------------------------------------------------------------------- one query

    def _is_worth_asking(self, stage: Forecaster, query: Query, so_far: Forecast | None) -> bool:
        if so_far is None or not _knows(so_far):
            return True
        if so_far.objection:
            return False
        chance = self._chance_of_another_decision(query, so_far)
        cost_usd = stage.quote([query]).get(Resource.FORECAST_USD, 0.0)
        return chance >= self._least_flip and chance * self._measurement_usd >= cost_usd

    def _chance_of_another_decision(self, query: Query, so_far: Forecast) -> float:
        """P(an answer that resolves its share of the variance crosses the policy's threshold)."""
        p_ok = so_far.p_ok
        if p_ok <= self._threshold:
            return 0.0
        goal = self._goal(query) - query.anchor_log2_speedup
        mean, std = so_far.distribution.mean(), so_far.distribution.std()
        left = std * math.sqrt(1.0 - self._resolution)
        moves = std * math.sqrt(self._resolution)
        # The mean from which on P(new best) is above the threshold.
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
        """What a policy would decide; of what nobody has spoken, that it is measured."""
        if forecast is None:
            return True
        return not forecast.objection and self._p_new_best(query, forecast) >= self._threshold

    def _final(self, query: Query, answers: list[tuple[Stage, Forecast]]) -> Forecast:
        pooled = self._pooled(query, answers)
        assert pooled is not None, "a cascade has at least one stage"
        return pooled

    def _pooled(self, query: Query, answers: list[tuple[Stage, Forecast]]) -> Forecast | None:
        """The answers so far as one forecast, each with the say that its record gives it."""
        if not answers:
            return None
        heard = [each for each in answers if _knows(each[1])] or answers
        told = [answer for _, answer in heard]
        weights = [self._skills[stage.forecaster].weight for stage, _ in heard]
        total = sum(weights)
        kinds = {kind for answer in told for kind in answer.failure}
        return Forecast(
            forecaster=self.name,
            anchor_id=query.anchor.id,
            anchor_log2_speedup=query.anchor_log2_speedup,
            distribution=Distribution.mixture([each.distribution for each in told], weights),
            failure={
                kind: sum(
                    weight * answer.failure.get(kind, 0.0)
                    for weight, answer in zip(weights, told, strict=True)
                )
                / total
                for kind in sorted(kinds)
            },
            usage=Usage.total(answer.usage for _, answer in answers),
            unparsed=any(answer.unparsed for _, answer in answers),
            rationale=next((each.rationale for each in reversed(told) if each.rationale), ""),
            objection=next((each.objection for each in told if each.objection), ""),
            stages=tuple(stage for stage, _ in answers),
            is_prior=all(answer.is_prior for answer in told),
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
    """Names under which stages are counted: the second of a name is called so."""
    return [
        name if names.index(name) == index else f"{name} {names[: index + 1].count(name)}"
        for index, name in enumerate(names)
    ]
