from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernelcast.dataset import Row, Rows, recorded_trials, to_rows, to_table
from kernelcast.errors import SetupError
from kernelcast.forecasters._source import CLASS_EDGES, SourceForecaster, SourceModel
from kernelcast.judge.evaluation import ask, draw, evaluate
from kernelcast.training.folds import Fold, cross_validate
from kernelcast.training.licences import check_publishable
from kernelcast.training.trees import train_source_model
from kernelcast.types import Forecast

from .conftest import search_rows


@pytest.fixture(scope="module")
def model(made_rows: Rows) -> SourceModel:
    return train_source_model(made_rows)


@pytest.fixture(scope="module")
def folds(made_rows: Rows) -> list[Fold]:
    return list(cross_validate(made_rows, folds=2))


def test_it_learns_what_makes_a_kernel_fast_or_fail(folds: list[Fold]) -> None:
    scores = evaluate([answer for fold in folds for answer in fold.searched()]).scores
    assert scores["auroc_failure"].value > 0.9
    assert scores["auroc_gain"].value > 0.8


def test_a_pool_is_ordered_by_its_texts_alone(folds: list[Fold]) -> None:
    answers = [answer for fold in folds for answer in fold.pooled()]
    assert evaluate(answers).scores["spearman"].value > 0.5


def test_the_same_rows_and_seed_give_the_same_model(made_rows: Rows, model: SourceModel) -> None:
    again = train_source_model(made_rows)
    assert again.header == model.header
    assert dict(again.trees) == dict(model.trees)


def test_a_saved_model_forecasts_as_before(
    made_rows: Rows, model: SourceModel, tmp_path: Path
) -> None:
    model.save(tmp_path / "model.zst")
    loaded = SourceModel.load(tmp_path / "model.zst")
    assert loaded.header == model.header
    search = next(recorded_trials(made_rows))
    for trial in search.trials:
        answers = []
        for source_model in (model, loaded):
            forecaster = SourceForecaster(source_model)
            forecaster.learn(trial.news)
            answers.append(forecaster.forecast([trial.query])[0])
        assert answers[0] == answers[1]


def test_no_forecast_knows_the_future(made_rows: Rows, model: SourceModel) -> None:
    """A search's forecasts up to a step are the same whatever came of that step and later ones."""
    rows = list(to_rows(made_rows))
    cut = 6
    changed = [
        row.model_copy(update={"status": "ok", "log2_speedup": 3.0, "runtime_s": 1e-4})
        if row.step is not None and row.step >= cut
        else row
        for row in rows
    ]

    def before_cut(rows: list[Row]) -> list[Forecast]:
        questions = draw([next(recorded_trials(to_table(rows)))])
        answers = ask(lambda: SourceForecaster(model), questions)
        return [answer.forecast for answer in answers][:cut]

    assert before_cut(rows) == before_cut(changed)


def test_every_fold_is_forecast_by_a_model_of_other_problems(folds: list[Fold]) -> None:
    problems = [{answer.group for answer in fold.pooled()} for fold in folds]
    assert [fold.number for fold in folds] == [0, 1]
    assert all(problems)
    assert not problems[0] & problems[1]


def test_rows_that_may_not_be_published_are_refused() -> None:
    unstated = to_table(search_rows(2, 3, licence="unstated"))
    with pytest.raises(SetupError, match="licence"):
        check_publishable(unstated)
    held_back = to_table(search_rows(2, 3, source="sol-execbench-rocm/retimed"))
    with pytest.raises(SetupError, match="evaluation only"):
        check_publishable(held_back)


def test_rows_without_text_are_refused() -> None:
    rows = [row.model_copy(update={"candidate_source": None}) for row in search_rows(2, 3)]
    with pytest.raises(SetupError, match="text"):
        train_source_model(to_table(rows))


def test_classes_cut_no_bin(model: SourceModel) -> None:
    shares = np.array(model.header.share_below)
    knots = np.array(model.header.knots)
    for number, edge in enumerate(CLASS_EDGES):
        at = int(np.argmin(np.abs(knots - edge)))
        assert shares[number, at] == 1.0
        assert shares[number + 1, at] == 0.0
