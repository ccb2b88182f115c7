"""New rows are folded in only where they help on problems that neither side has seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelcast.dataset import Row, Rows, to_table
from kernelcast.errors import SetupError
from kernelcast.training.language_model import LanguageModel
from kernelcast.training.pairs import questions
from kernelcast.training.recipe import Recipe
from kernelcast.training.refresh import refresh_language_model, refresh_trees
from kernelcast.training.supervised import Settings

from .conftest import search_rows
from .tiny_model import write_tiny_model


def _backwards(rows: list[Row]) -> list[Row]:
    """Searches in which what was fast is slow."""
    return [
        row.model_copy(
            update={
                "log2_speedup": None if row.log2_speedup is None else -row.log2_speedup,
                "runtime_s": row.runtime_s and 1e-3 * 2.0 ** (row.log2_speedup or 0.0),
            }
        )
        for row in rows
    ]


@pytest.fixture(scope="module")
def old() -> Rows:
    return to_table(search_rows(18, 10, source="old"))


def test_rows_that_tell_something_new_are_learnt(old: Rows) -> None:
    new = to_table(_backwards(search_rows(18, 10, source="new", seed=1)))
    result = refresh_trees(old, new)
    assert result.is_better
    assert result.model is not None
    assert result.before.kernels == result.after.kernels == result.before.kernels
    assert "new" in result.model.header.trained_on


def test_both_sides_are_judged_on_the_same_rows_and_the_old_model_may_stay(old: Rows) -> None:
    few = [row for row in search_rows(4, 3, source="new", seed=2) if row.step]
    spoilt = [
        row.model_copy(update={"log2_speedup": 3.0, "runtime_s": 1e-3 / 8, "status": "ok"})
        for row in few
        if row.problem.endswith("0")
    ]
    new = to_table([row for row in few if not row.problem.endswith("0")] + spoilt)
    result = refresh_trees(old, new)
    assert result.before.kernels == result.after.kernels > 0
    assert (result.model is not None) is result.is_better


def test_one_problem_is_too_few(old: Rows) -> None:
    with pytest.raises(SetupError, match="at least two"):
        refresh_trees(old, to_table(search_rows(1, 5, source="new")))


# ---------------------------------------------------------------------------- language models


def _taught(folder: Path, rows: Rows) -> Recipe:
    """A tiny model of some steps in `folder / "mine"`, and its recipe."""
    base = write_tiny_model(folder / "base")
    settings = Settings(out=folder, batch=4, at_once=4, learning_rate=3e-3, lora=None)
    recipe = Recipe.of(settings, ask="direct")
    asked = questions(rows, recipe.prompts)
    recipe.train(LanguageModel.load(base), asked, folder / "mine", steps=6)
    return recipe


@pytest.mark.parametrize(("learning_rate", "learns"), [(3e-3, True), (1.0, False)])
def test_a_language_model_goes_on_from_where_it_stands(
    tmp_path: Path, learning_rate: float, learns: bool
) -> None:
    pytest.importorskip("transformers")
    old = to_table(search_rows(2, 6, source="old"))
    new = to_table(search_rows(6, 6, source="new", seed=1))
    recipe = _taught(tmp_path, old)
    assert Recipe.read(tmp_path / "mine") == recipe
    changed = {**recipe.settings, "learning_rate": learning_rate}
    recipe.model_copy(update={"settings": changed}).save(tmp_path / "mine")
    shown: list[tuple[str, int, int | None]] = []
    result = refresh_language_model(
        tmp_path / "mine",
        old,
        new,
        tmp_path / "next",
        seed=1,
        on_progress=lambda *progress: shown.append(progress),
    )
    assert result.before.kernels == result.after.kernels > 0
    assert result.is_better is learns
    assert 0 < result.learnt.num_rows < new.num_rows
    steps = shown[-2][1]
    assert shown[-2] == ("training", steps, steps)
    assert Recipe.read(tmp_path / "next").settings == changed
    assert (tmp_path / "next" / "model.safetensors").is_file()
