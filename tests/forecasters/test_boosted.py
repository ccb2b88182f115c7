"""Trees as text: honest ones forecast as before, and forged ones never reach LightGBM."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import lightgbm
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.errors import SetupError
from kernelcast.forecasters._boosted import plain_trees
from kernelcast.forecasters._source import SourceModel

COLUMNS = 6


def some_rows(columns: int, count: int = 400) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Numbers of all sizes, zeros, and missing ones."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(count, columns)) * 4
    rows[rng.random(rows.shape) < 0.2] = np.nan
    rows[rng.random(rows.shape) < 0.2] = 0.0
    return np.where(rng.random(rows.shape) < 0.3, np.round(rows), rows)


def trained(classes: int = 1, leaves: int = 5, rounds: int = 3) -> str:
    rows = some_rows(COLUMNS)
    target = np.nan_to_num(rows[:, 0] + rows[:, 1] * rows[:, 2])
    options = {"objective": "regression"}
    if classes > 1:
        target = np.digitize(target, np.linspace(-3, 3, classes - 1)).astype(np.float64)
        options = {"objective": "multiclass", "num_class": str(classes)}
    settings = {**options, "num_leaves": leaves, "verbosity": -1, "num_threads": 1}
    data = lightgbm.Dataset(rows, target)
    return lightgbm.train(settings, data, rounds).model_to_string()


TEXT = trained()


def scores(text: str, columns: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    booster = lightgbm.Booster(model_str=text)
    return np.asarray(booster.predict(some_rows(columns), raw_score=True, num_threads=1))


@pytest.mark.parametrize(("classes", "leaves"), [(1, 2), (1, 31), (4, 7)])
def test_trained_trees_forecast_the_same(classes: int, leaves: int) -> None:
    text = trained(classes, leaves)
    plain = plain_trees(text, COLUMNS, classes)
    assert len(plain) < len(text)
    assert np.array_equal(scores(plain, COLUMNS), scores(text, COLUMNS))


def test_trees_without_a_split_forecast_the_same() -> None:
    data = lightgbm.Dataset(some_rows(COLUMNS), np.ones(400))
    text = lightgbm.train({"verbosity": -1, "num_threads": 1}, data, 2).model_to_string()
    assert "num_leaves=1\n" in text
    assert np.array_equal(scores(plain_trees(text, COLUMNS, 1), COLUMNS), scores(text, COLUMNS))


def test_the_shipped_trees_forecast_the_same() -> None:
    model = SourceModel.load()
    for name, text in model.trees.items():
        columns = lightgbm.Booster(model_str=text).num_feature()
        assert np.array_equal(scores(model._texts[name], columns), scores(text, columns))


def edited(key: str, place: int, value: str) -> str:
    """The text with one number of the first tree's line changed."""

    def change(line: re.Match[str]) -> str:
        words = line[2].split(" ")
        words[place] = value
        return f"{line[1]}{' '.join(words)}"

    text, count = re.subn(rf"(?m)^({key}=)(.+)$", change, TEXT, count=1)
    assert count == 1
    return text


@pytest.mark.parametrize(
    ("key", "place", "value", "said"),
    [
        ("left_child", 0, "0", "not the child of one node"),
        ("left_child", 1, "0", "not the child of one node"),
        ("right_child", 0, "99999999", "not the child of one node"),
        ("right_child", 0, "-99999999", "not the child of one node"),
        ("right_child", 0, "-2147483649999", "not the child of one node"),
        ("left_child", 0, "1.5", "invalid literal"),
        ("split_feature", 0, "6", "column that there is not"),
        ("split_feature", 0, "-1", "column that there is not"),
        ("threshold", 0, "nan", "finite numbers in threshold"),
        ("threshold", 0, "1e999", "finite numbers in threshold"),
        ("threshold", 0, "1 2", "not 4 numbers in threshold"),
        ("leaf_value", 0, "inf", "finite numbers in leaf_value"),
        ("leaf_value", 0, "x", "finite numbers in leaf_value"),
        ("leaf_value", 0, "1 2", "not 5 numbers in leaf_value"),
        ("decision_type", 0, "1", "another rule"),
        ("decision_type", 0, "16", "another rule"),
        ("num_leaves", 0, "999999", "num_leaves is no number up to"),
        ("num_leaves", 0, "6", "not 5 numbers"),
        ("num_leaves", 0, "4", "not 3 numbers"),
        ("num_leaves", 0, "-1", "num_leaves is no number"),
        ("num_leaves", 0, "0", "another kind"),
        ("num_cat", 0, "1", "another kind"),
        ("is_linear", 0, "1", "another kind"),
        ("max_feature_idx", 0, "99", "not for 6 columns"),
        ("max_feature_idx", 0, "999999999", "max_feature_idx is no number"),
        ("num_tree_per_iteration", 0, "0", "do not give 1 scores"),
        ("num_tree_per_iteration", 0, "3", "num_tree_per_iteration is no number"),
    ],
)
def test_a_forged_number_is_refused(key: str, place: int, value: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plain_trees(edited(key, place, value), COLUMNS, 1)


def test_two_nodes_that_are_each_other_s_children_are_refused() -> None:
    tree = (
        "max_feature_idx=5\nnum_tree_per_iteration=1\n\nTree=0\nnum_leaves=4\n"
        "split_feature=0 0 0\nthreshold=0 0 0\ndecision_type=2 2 2\nleaf_value=0 0 0 0\n"
        "left_child={}\nright_child={}\n\nend of trees"
    )
    assert plain_trees(tree.format("1 2 -2", "-1 -3 -4"), COLUMNS, 1)
    with pytest.raises(ValueError, match="its own ancestor"):
        plain_trees(tree.format("-1 2 1", "-2 -3 -4"), COLUMNS, 1)


@pytest.mark.parametrize("text", ["", "tree", "end of trees", "Tree=0", TEXT[:400], TEXT[::-1]])
def test_what_is_no_model_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no number|trees|a tree has"):
        plain_trees(text, COLUMNS, 1)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_text_is_refused_or_gives_finite_scores(data: st.DataObject) -> None:
    damaged = list(TEXT[: TEXT.index("end of trees") + 13])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.sampled_from("0123456789-. \n=einf"))
    try:
        plain = plain_trees("".join(damaged), COLUMNS, 1)
    except ValueError:
        return
    assert np.isfinite(scores(plain, COLUMNS)).all()


# ------------------------------------------------------------------------------- from the outside


COMMAND = (sys.executable, "-c", "from kernelcast.cli import main; main()")


def write(model: SourceModel, path: Path) -> None:
    """What `save` writes, sooner: it takes its time to make a small file."""
    plain = {"header": model.header.model_dump(mode="json"), "trees": dict(model.trees)}
    path.write_bytes(zstandard.ZstdCompressor(level=1).compress(json.dumps(plain).encode()))


def crossed(text: str) -> str:
    """The first node of the first tree is its own left child."""
    return re.sub(r"(?m)^left_child=\S+", "left_child=0", text, count=1)


def astray(text: str) -> str:
    """The first node's right child is far outside of the arrays."""
    return re.sub(r"(?m)^right_child=\S+", "right_child=987654321", text, count=1)


def no_text(_text: str) -> str:
    return "tree\nversion=v4\n"


@pytest.mark.parametrize(
    ("forge", "name"), [(crossed, "density"), (astray, "order"), (no_text, "failure")]
)
def test_the_command_refuses_a_forged_file_and_names_it(
    tmp_path: Path, forge: Callable[[str], str], name: str
) -> None:
    """Read by LightGBM, the first hangs and the second is a segmentation fault."""
    model = SourceModel.load()
    trees = {**model.trees, name: forge(model.trees[name])}
    assert trees[name] != model.trees[name]
    write(replace(model, trees=trees), tmp_path / "forged.json.zst")
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    for number, title in enumerate(("reference", "other")):
        (kernels / f"{title}.cpp").write_text(f"int f() {{ return {number}; }}\n")
    run = subprocess.run(
        [*COMMAND, "rank", "kernels", "--trees", "forged.json.zst"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode > 0, "it was killed, or it believed the file"
    said = " ".join((run.stdout + run.stderr).split())
    assert "forged.json.zst is not a source model" in said
    assert "kernelcast train" in said
    assert "Traceback" not in said


def test_an_honest_file_is_loaded(tmp_path: Path) -> None:
    model = SourceModel.load()
    write(model, tmp_path / "model.json.zst")
    assert SourceModel.load(tmp_path / "model.json.zst").trees == model.trees


@pytest.mark.parametrize(
    ("update", "said"),
    [
        ({"knots": (0.0, 1.0)}, "one for each class and knot"),
        ({"class_shares": (0.5, 0.5)}, "one for each class and knot"),
        ({"class_shares": (0.0,) * 13}, "no share"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(
    tmp_path: Path, update: dict[str, object], said: str
) -> None:
    model = SourceModel.load()
    header = model.header.model_copy(update=update)
    write(replace(model, header=header), tmp_path / "model.json.zst")
    with pytest.raises(SetupError, match=said):
        SourceModel.load(tmp_path / "model.json.zst")


def test_trees_of_other_names_are_refused(tmp_path: Path) -> None:
    model = SourceModel.load()
    for trees in ({}, {"density": model.trees["density"]}, {**model.trees, "more": ""}):
        write(replace(model, trees=trees), tmp_path / "model.json.zst")
        with pytest.raises(SetupError, match="density, failure and order"):
            SourceModel.load(tmp_path / "model.json.zst")
