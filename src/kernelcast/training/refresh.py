"""Fold newly measured kernels into the trees, if that helps on problems that neither has seen.

The present model has learnt from its rows, so it cannot be judged on them. Both sides are therefore
trained again without the problems that they are judged on: one on the old rows, one on the old and
the new. Only the new rows are judged, since those are what the user searches.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from kernelcast.dataset import Rows, Split, concatenate, split_by
from kernelcast.dataset.keys import problem_group
from kernelcast.errors import SetupError
from kernelcast.forecasters._source import SourceModel
from kernelcast.judge.evaluation import Answer, Evaluation, evaluate
from kernelcast.training.folds import Fold
from kernelcast.training.trees import train_source_model

_FOLDS = 3


@dataclass(frozen=True)
class Refreshed:
    """Both sides on the same held-out rows; `model` is None if the new rows do not help."""

    before: Evaluation
    after: Evaluation
    model: SourceModel | None

    @property
    def is_better(self) -> bool:
        """Whether the new rows lower the CRPS."""
        return self.after.scores["crps"].value < self.before.scores["crps"].value


def refresh(old: Rows, new: Rows, seed: int = 0) -> Refreshed:
    """Train with and without the new rows, and with all if the first is the better.

    Args:
        old: What the present model was trained on.
        new: What was measured since.
        seed: Seed of the folds and of training.

    Raises:
        SetupError: The new rows are of fewer than two problems, so none can be held out.
    """
    before: list[Answer] = []
    after: list[Answer] = []
    for number, split in enumerate(_splits(new, seed)):
        held_out = {problem_group(name) for name in split.test["problem"].to_pylist()}
        known = _without(old, held_out)
        for answers, rows in ((before, known), (after, concatenate([known, split.train]))):
            fold = Fold(number, train_source_model(rows, seed), split.test, seed)
            answers += fold.searched()
    result = Refreshed(evaluate(before), evaluate(after), None)
    if not result.is_better:
        return result
    model = train_source_model(concatenate([old, new]), seed)
    return Refreshed(result.before, result.after, model)


def _splits(rows: Rows, seed: int) -> list[Split]:
    for folds in range(_FOLDS, 1, -1):
        with suppress(SetupError):  # problems that share a kernel are one
            return split_by(rows, "problem", folds=folds, seed=seed)
    raise SetupError(
        "the new rows are of one problem, or of problems that share their kernels: refresh once at "
        "least two were measured"
    )


def _without(rows: Rows, problems: set[str]) -> Rows:
    import pyarrow as pa

    kept = [problem_group(name) not in problems for name in rows["problem"].to_pylist()]
    return rows.filter(pa.array(kept)).unify_dictionaries()
