"""The default forecaster: trained trees for written kernels, a Gaussian process for tuned ones.

The trees that ship with kernelcast forecast a kernel that is free text, corrected by the run's own
measurements (`_source.py`) and, if both kernels are emulated, by the ratio of their estimates
(`emulated.py`); no row that they were trained on has an estimate. A Gaussian process forecasts a
configuration of a template, from measured configurations, from their times on other devices, and
from their estimates (`_tuned.py`). Both take milliseconds and need neither a key nor a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import compress

from kernelcast.forecasters._source import SourceForecaster
from kernelcast.forecasters._tuned import DeviceTimes, Elsewhere, TunedForecaster
from kernelcast.forecasters.emulated import EmulatedForecaster
from kernelcast.types import Forecast, Observation, PastRun, Query, Spend

__all__ = ["DeviceTimes", "Elsewhere", "TreesForecaster"]


class TreesForecaster:
    """Forecasts written kernels by trees and configurations by a Gaussian process."""

    name = "trees"
    concurrency = 0
    refreshes = True

    def __init__(self, elsewhere: Elsewhere | None = None, model: str | None = None) -> None:
        self._tuned = TunedForecaster(elsewhere)
        self._emulated = EmulatedForecaster()
        self._model = model
        self._past: Sequence[PastRun] = ()

    @cached_property
    def _written(self) -> SourceForecaster:
        """The trained trees, read at first use: a run of configurations does not need them."""
        forecaster = SourceForecaster(path=self._model)
        forecaster.remember(self._past)
        return forecaster

    def remember(self, runs: Sequence[PastRun]) -> None:
        """Learn from the written kernels of earlier runs; they are read at first use."""
        self._past = runs

    def quote(self, queries: Sequence[Query]) -> Spend:
        """Return no cost."""
        del queries
        return {}

    def learn(self, observations: Sequence[Observation]) -> None:
        """Keep the observations for the next forecast."""
        for observation in observations:
            part = self._written if observation.kernel.parameters is None else self._tuned
            part.learn([observation])
        self._emulated.learn(observations)

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        """Return one forecast per query, in order."""
        is_written = [query.candidate.parameters is None for query in queries]
        written = list(compress(queries, is_written))
        tuned = [query for query in queries if query.candidate.parameters is not None]
        read = self._written.forecast(written) if written else []
        of_written = map(self._emulated.reconciled, written, read)
        of_tuned = iter(self._tuned.forecast(tuned))
        forecasts = (next(of_written if flag else of_tuned) for flag in is_written)
        return [forecast.model_copy(update={"forecaster": self.name}) for forecast in forecasts]
