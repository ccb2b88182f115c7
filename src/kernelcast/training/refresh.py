"""Fold newly measured kernels into a model, if that helps on problems that are held out.

Only new rows are judged, since those are what the user searches.

Trees are trained again without the problems that they are judged on: one side on the old rows, one
on the old and the new. If the new rows help, trees of all rows replace the present ones.

A language model goes on learning from where it stands, on some problems of the new rows and as many
questions about old rows. It is judged beside its former self on the other problems of the new rows,
and the model that was judged is the one that replaces it. What was held out is not learnt, so that
the next refresh takes it as new.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kernelcast.bins import BINS
from kernelcast.dataset import Rows, Split, concatenate, recorded_trials, split_by
from kernelcast.dataset.keys import problem_group
from kernelcast.errors import SetupError
from kernelcast.forecasters._source import SourceModel
from kernelcast.judge.evaluation import Answer, Evaluation, ask, draw, evaluate
from kernelcast.training.folds import Fold
from kernelcast.training.language_model import LanguageModel
from kernelcast.training.local import LocalForecaster
from kernelcast.training.pairs import questions, without_near_duplicates
from kernelcast.training.recipe import Recipe
from kernelcast.training.trees import train_source_model

_FOLDS = 3


@dataclass(frozen=True)
class Compared:
    """Both sides on the same held-out rows."""

    before: Evaluation
    after: Evaluation

    @property
    def is_better(self) -> bool:
        """Whether the new rows lower the CRPS."""
        return self.after.scores["crps"].value < self.before.scores["crps"].value


@dataclass(frozen=True)
class RefreshedTrees(Compared):
    """The comparison of trees; `model` is None if the new rows do not help."""

    model: SourceModel | None


@dataclass(frozen=True)
class RefreshedLanguageModel(Compared):
    """The comparison of a language model, and the rows that the new one has learnt."""

    learnt: Rows


def refresh_trees(old: Rows, new: Rows, seed: int = 0) -> RefreshedTrees:
    """Train trees with and without the new rows, and with all if the first is the better.

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
    result = RefreshedTrees(evaluate(before), evaluate(after), None)
    if not result.is_better:
        return result
    model = train_source_model(concatenate([old, new]), seed)
    return RefreshedTrees(result.before, result.after, model)


def refresh_language_model(
    folder: Path,
    old: Rows,
    new: Rows,
    out: Path,
    *,
    steps: int | None = None,
    seed: int = 0,
    on_progress: Callable[[str, int, int | None], None] = lambda *_: None,
) -> RefreshedLanguageModel:
    """Train a language model further, in another folder, and judge it beside its former self.

    Args:
        folder: The present model, which a recipe has written.
        old: What it was trained on.
        new: What was measured since.
        out: Folder for the new model.
        steps: Steps of training; by default as many as read each question once.
        seed: Seed of the draws and of training.
        on_progress: Is called with what is done, its part that is done, and the whole if known.

    Raises:
        SetupError: The folder holds no recipe, or the new rows are of fewer than two problems.
    """
    recipe = Recipe.read(folder)
    split = _splits(new, seed)[0]
    apart = without_near_duplicates(split.train, split.test)
    if not apart.num_rows:
        raise SetupError(
            "every new kernel is nearly one of another new problem: refresh once others were "
            "measured"
        )
    fresh = questions(apart, recipe.prompts, seed=seed)
    asked = fresh + questions(old, recipe.prompts, limit=len(fresh), seed=seed)
    count = steps or math.ceil(len(asked) / recipe.batch)
    on_progress("judging the present model", 0, None)
    before = _judged(folder, recipe, split.test)
    recipe.train(
        LanguageModel.load(folder),
        asked,
        out,
        lambda step: on_progress("training", step, count),
        steps=count,
        seed=seed,
    )
    on_progress("judging the new model", 0, None)
    return RefreshedLanguageModel(before, _judged(out, recipe, split.test), split.train)


def _judged(folder: Path, recipe: Recipe, test: Rows) -> Evaluation:
    """The scores of a model along the recorded searches of these rows."""
    forecaster = LocalForecaster(
        LanguageModel.load(folder),
        max_tokens=recipe.settings["max_tokens"],
        ask=recipe.ask,
        bins=recipe.bins,
    )
    searches = list(recorded_trials(test, "best", order="recorded"))
    answers = ask(partial(forecaster.knowing, ()), draw(searches, with_text=True))
    return evaluate(answers, BINS[recipe.bins])


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
