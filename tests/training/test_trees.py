from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from kernelcast.dataset import Row, Rows, to_rows, to_table
from kernelcast.errors import SetupError
from kernelcast.forecasters._source import CLASS_EDGES, SHIPPED, SourceForecaster, SourceModel
from kernelcast.scoring import auroc, spearman
from kernelcast.training._lessons import episodes, moments
from kernelcast.training._trials import Trials, cross_examine
from kernelcast.training.trees import ship, train_source_model

from .conftest import search_rows


@pytest.fixture(scope="module")
def model(made_rows: Rows) -> SourceModel:
    return train_source_model(made_rows)


@pytest.fixture(scope="module")
def trials(made_rows: Rows) -> Trials:
    return cross_examine(made_rows, train_source_model, folds=2)


def test_it_learns_what_makes_a_kernel_fast_or_fail(trials: Trials) -> None:
    asked = trials.searched
    assert auroc([1 - t.forecast.p_ok for t in asked], [t.failed for t in asked]) > 0.9
    ran = [t for t in asked if not math.isnan(t.outcome)]
    assert spearman([t.forecast.distribution.mean() for t in ran], [t.outcome for t in ran]) > 0.7


def test_a_pool_is_ordered_by_its_texts_alone(trials: Trials) -> None:
    ran = [t for t in trials.pooled if not math.isnan(t.outcome)]
    by_problem: dict[str, list[int]] = {}
    for index, trial in enumerate(ran):
        by_problem.setdefault(trial.problem, []).append(index)
    found = [
        spearman(
            [ran[i].forecast.distribution.mean() for i in members],
            [ran[i].outcome for i in members],
        )
        for members in by_problem.values()
    ]
    assert np.nanmean(found) > 0.5


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
    episode = episodes(made_rows)[0]
    for number, anchor, news in moments(episode):
        query = anchor.query(episode, episode.steps[number].kernel)
        answers = []
        for each in (model, loaded):
            forecaster = SourceForecaster(each)
            forecaster.learn(news)
            answers.append(forecaster.forecast([query])[0])
        assert answers[0] == answers[1]


def test_no_lesson_knows_the_future(made_rows: Rows) -> None:
    """A search's forecasts up to a step are the same whatever came of that step and later ones."""
    rows = list(to_rows(made_rows))
    cut = 6
    changed = [
        row.model_copy(update={"status": "ok", "log2_speedup": 3.0, "runtime_s": 1e-4})
        if row.step is not None and row.step >= cut
        else row
        for row in rows
    ]
    model = train_source_model(made_rows)

    def before_cut(each: list[Row]) -> list[object]:
        episode = episodes(to_table(each))[0]
        forecaster = SourceForecaster(model)
        found: list[object] = []
        for number, anchor, news in moments(episode):
            forecaster.learn(news)
            if number <= cut:
                found += forecaster.forecast([anchor.query(episode, episode.steps[number].kernel)])
        return found

    assert before_cut(rows) == before_cut(changed)


def test_every_fold_is_forecast_by_a_model_of_other_problems(trials: Trials) -> None:
    fold_of: dict[str, set[int]] = {}
    for trial in trials.searched:
        fold_of.setdefault(trial.problem, set()).add(trial.fold)
    assert all(len(folds) == 1 for folds in fold_of.values())
    assert {fold for folds in fold_of.values() for fold in folds} == {0, 1}


def test_what_may_not_ship_is_refused() -> None:
    unstated = to_table(search_rows(2, 3, licence="unstated"))
    with pytest.raises(SetupError, match="licence"):
        train_source_model(unstated, for_shipping=True)
    held_back = to_table(search_rows(2, 3, source="sol-execbench-rocm/retimed"))
    with pytest.raises(SetupError, match="evaluation only"):
        train_source_model(held_back, for_shipping=True)


def test_rows_without_text_are_refused() -> None:
    rows = [row.model_copy(update={"candidate_source": None}) for row in search_rows(2, 3)]
    with pytest.raises(SetupError, match="text"):
        train_source_model(to_table(rows))


def test_shipping_writes_a_model_and_its_card(tmp_path: Path) -> None:
    path = ship(to_table(search_rows(12, 8)), tmp_path, command="made in a test")
    assert path == tmp_path / SHIPPED
    assert SourceModel.load(path).header.trained_on == "made (96)"
    card = (tmp_path / "card.md").read_text()
    for expected in ("| made | MIT | 96 |", "made in a test", "must not be trusted", "GPU"):
        assert expected in card


def test_classes_cut_no_bin(model: SourceModel) -> None:
    shares = np.array(model.header.share_below)
    knots = np.array(model.header.knots)
    for number, edge in enumerate(CLASS_EDGES):
        at = int(np.argmin(np.abs(knots - edge)))
        assert shares[number, at] == 1.0
        assert shares[number + 1, at] == 0.0
