"""Forecasts of recorded kernels by models that have not seen their problem.

Belongs here: the replay of recorded searches through the very forecaster a run uses, so that a
published score is the score of what users get. What the scores mean lives in `scoring.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernelcast.dataset import Rows, split_by
from kernelcast.forecasters._source import SourceForecaster, SourceModel
from kernelcast.training._lessons import Anchor, Episode, Step, episodes, moments
from kernelcast.types import Forecast, Kernel

Trainer = Callable[[Rows], SourceModel]


@dataclass(frozen=True)
class Trial:
    """One forecast, and what happened; `outcome` is log2 against the anchor, nan if unknown."""

    fold: int
    problem: str
    family: str
    device: str
    source: str
    model: str
    search: str
    step: int
    kernel: Kernel
    forecast: Forecast
    outcome: float
    failed: bool

    @property
    def log2_speedup(self) -> float:
        """Against the reference."""
        return self.outcome + self.forecast.anchor_log2_speedup


@dataclass(frozen=True)
class Trials:
    """Of each fold: searches step by step, and pools of which nothing was measured."""

    searched: tuple[Trial, ...]
    pooled: tuple[Trial, ...]


def cross_examine(rows: Rows, train: Trainer, folds: int = 5, seed: int = 0) -> Trials:
    """Forecast every kernel by a model trained on other problems."""
    searched: list[Trial] = []
    pooled: list[Trial] = []
    for fold, split in enumerate(split_by(rows, "problem", folds=folds, seed=seed)):
        model = train(split.train)
        told = split.test.select(["source", "model"]).to_pylist()
        recorded = episodes(split.test, seed)
        for episode in recorded:
            searched += _searched(fold, model, episode, told)
        pooled += forecast_pools(fold, model, recorded, told)
    return Trials(tuple(searched), tuple(pooled))


def _searched(
    fold: int, model: SourceModel, episode: Episode, told: Sequence[dict[str, str]]
) -> list[Trial]:
    """Forecast each fresh kernel, then learn what was measured."""
    forecaster = SourceForecaster(model)
    found = []
    for number, anchor, news in moments(episode):
        forecaster.learn(news)
        step = episode.steps[number]
        if step.fresh:
            (forecast,) = forecaster.forecast([anchor.query(episode, step.kernel)])
            found.append(_trial(fold, episode, number, step, forecast, told[step.row]))
    return found


def forecast_pools(
    fold: int, model: SourceModel, recorded: Sequence[Episode], told: Sequence[dict[str, str]]
) -> list[Trial]:
    """Forecast all texts of one problem and device at once, with nothing measured."""
    pools: dict[tuple[str, str], dict[str, tuple[Episode, Step]]] = {}
    for episode in recorded:
        pool = pools.setdefault((episode.problem.name, episode.device.name), {})
        for step in episode.steps:
            if step.kernel.source:
                pool.setdefault(step.kernel.id, (episode, step))
    found = []
    for (problem, _), pool in pools.items():
        first = next(iter(pool.values()), None)
        if first is None:
            continue
        kernel = Kernel(
            id=f"reference of {problem}", language="python", source=first[0].problem.oracle_source
        )
        anchor = Anchor(kernel, 0.0, 0.0)
        members = list(pool.values())
        forecasts = SourceForecaster(model).forecast(
            [anchor.query(episode, step.kernel) for episode, step in members]
        )
        found += [
            _trial(fold, episode, 0, step, forecast, told[step.row])
            for (episode, step), forecast in zip(members, forecasts, strict=True)
        ]
    return found


def _trial(
    fold: int, episode: Episode, number: int, step: Step, forecast: Forecast, told: dict[str, str]
) -> Trial:
    log2_speedup = step.measurement.log2_speedup if step.measurement else None
    return Trial(
        fold=fold,
        problem=episode.problem.name,
        family=episode.problem.family,
        device=episode.device.name,
        source=told["source"],
        model=told["model"] or "",
        search=episode.search,
        step=number,
        kernel=step.kernel,
        forecast=forecast,
        outcome=math.nan if log2_speedup is None else log2_speedup - forecast.anchor_log2_speedup,
        failed=step.failed is not None,
    )
