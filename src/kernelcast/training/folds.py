"""Forecasts of recorded kernels by models that have not seen their problem.

The replay uses the forecaster of a run (`SourceForecaster`), so a published score is the score of
what users get.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from kernelcast.dataset import Anchor, Order, Rows, recorded_trials, split_by
from kernelcast.forecasters._source import SourceForecaster, SourceModel
from kernelcast.judge.evaluation import Answer, ask, draw
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

    def pooled(self) -> list[Answer]:
        """Forecasts of all texts of one problem and device at once, with nothing measured."""
        return self._answers("reference", "none")

    def _answers(self, anchor: Anchor, order: Order) -> list[Answer]:
        searches = recorded_trials(self.test, anchor, order=order, seed=self.seed)
        return ask(partial(SourceForecaster, self.model), draw(list(searches)))


def cross_validate(rows: Rows, folds: int = 5, seed: int = 0) -> Iterator[Fold]:
    """Train a model for each fold of problems on the rows of the other folds."""
    for number, split in enumerate(split_by(rows, "problem", folds=folds, seed=seed)):
        yield Fold(number, train_source_model(split.train, seed), split.test, seed)
