"""The default forecaster: trained trees for written kernels, a Gaussian process for tuned ones.

A kernel that is free text is forecast by the trees that ship with kernelcast, corrected by the
run's own measurements (`_source.py`). A kernel that is a configuration of a template is forecast
from the configurations that were measured, and from the same ones on other devices where those are
known (`_tuned.py`). Both need no key, no GPU and milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

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
        self._written = SourceForecaster(path=model)

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
        answers: dict[int, Forecast] = {}
        for part in (self._tuned, self._written):
            places = [
                place
                for place, query in enumerate(queries)
                if (query.candidate.parameters is not None) is (part is self._tuned)
            ]
            told = part.forecast([queries[place] for place in places])
            answers |= dict(zip(places, told, strict=True))
        signed = {"forecaster": self.name}
        return [answers[place].model_copy(update=signed) for place in range(len(queries))]
