"""Forecasts of recorded kernels by models that have not seen their problem.

The replay uses the forecaster of a run (`SourceForecaster`), so a published score is the score of
what users get.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from kernelcast.dataset import Anchor, Order, Rows, Trials, recorded_trials, split_by
from kernelcast.forecasters._source import SourceForecaster, SourceModel
from kernelcast.judge.evaluation import Answer, ask, draw
from kernelcast.protocols import Forecaster
from kernelcast.training.trees import train_source_model


@dataclass(frozen=True)
class Fold:
    """A model, and the rows of problems that it was not trained on."""

    number: int
    model: SourceModel
    test: Rows
    seed: int

    def searched(self) -> list[Answer]:
        """Forecasts along each search; a pool is searched in a random order."""
        return self._answers("best", "shuffled")

    def stored(self) -> list[Answer]:
        """The same, where each search knows the measurements of the searches before."""
        experience = self.model.experience()
        answers: list[Answer] = []
        for number, search in enumerate(self._searches("best", "shuffled")):
            forecaster = SourceForecaster(self.model, experience=experience)
            asked = ask(_always(forecaster), draw([search]))
            answers += [replace(answer, pool=number) for answer in asked]
            last = search.trials[-1].observation
            if last is not None:
                forecaster.learn([last])
        return answers

    def pooled(self) -> list[Answer]:
        """Forecasts of all texts of one problem and device at once, with nothing measured."""
        return self._answers("reference", "none")

    def _answers(self, anchor: Anchor, order: Order) -> list[Answer]:
        searches = self._searches(anchor, order)
        return ask(partial(SourceForecaster, self.model), draw(searches))

    def _searches(self, anchor: Anchor, order: Order) -> list[Trials]:
        return list(recorded_trials(self.test, anchor, order=order, seed=self.seed))


def _always(forecaster: Forecaster) -> Callable[[], Forecaster]:
    return lambda: forecaster


def leave_source_out(rows: Rows, fewest: int) -> Iterator[tuple[str, Rows, Rows]]:
    """Each source with at least so many failures, the rows of the other sources, and its own."""
    import pyarrow.compute as pc  # slow to import

    columns = (rows[name].to_pylist() for name in ("source", "status"))
    failures = Counter(
        source for source, status in zip(*columns, strict=True) if status not in ("ok", "reference")
    )
    for source in sorted(failures):
        if failures[source] >= fewest:
            own = pc.equal(rows["source"].cast("string"), source)
            others, test = rows.filter(pc.invert(own)), rows.filter(own)
            yield source, others.unify_dictionaries(), test.unify_dictionaries()


def cross_validate(rows: Rows, folds: int = 5, seed: int = 0) -> Iterator[Fold]:
    """Train a model for each fold of problems on the rows of the other folds."""
    for number, split in enumerate(split_by(rows, "problem", folds=folds, seed=seed)):
        yield Fold(number, train_source_model(split.train, seed), split.test, seed)
