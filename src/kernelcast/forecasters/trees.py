"""The default forecaster: trained trees for written kernels, a Gaussian process for tuned ones.

A kernel that is free text is forecast by the trees that ship with kernelcast, corrected by the
run's own measurements (`_source.py`). A kernel that is a configuration of a template is forecast
from the configurations that were measured, and from the same ones on other devices where those are
known (`_tuned.py`). Both need no key, no GPU and milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from kernelcast.forecasters._source import SourceForecaster
from kernelcast.forecasters._tuned import DeviceTimes, Elsewhere, TunedForecaster
from kernelcast.types import Forecast, Observation, Query, Spend

__all__ = ["DeviceTimes", "Elsewhere", "TreesForecaster"]


class TreesForecaster:
    """Both, by what a kernel is."""

    name = "trees"
    concurrency = 0
    refreshes = True

    def __init__(self, elsewhere: Elsewhere | None = None, model: str | None = None) -> None:
        self._tuned = TunedForecaster(elsewhere)
        self._model = model

    @cached_property
    def _written(self) -> SourceForecaster:
        """Reads the trained trees, which a run of a template's configurations never needs."""
        return SourceForecaster(path=self._model)

    def quote(self, queries: Sequence[Query]) -> Spend:
        """Trees cost milliseconds."""
        del queries
        return {}

    def learn(self, observations: Sequence[Observation]) -> None:
        """Keep the observations; the next forecast uses them."""
        for each in observations:
            part = self._written if each.kernel.parameters is None else self._tuned
            part.learn([each])

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        """One forecast a query, in order."""
        tuned = [query for query in queries if query.candidate.parameters is not None]
        written = [query for query in queries if query.candidate.parameters is None]
        of_tuned = iter(self._tuned.forecast(tuned))
        of_written = iter(self._written.forecast(written) if written else ())
        signed = {"forecaster": self.name}
        return [
            next(of_written if query.candidate.parameters is None else of_tuned).model_copy(
                update=signed
            )
            for query in queries
        ]
