"""The text of a problem.toml, and where it is written."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.errors import ProblemError, SetupError
from kernelcast.porting.folder import ProblemFile, name_of, summary_of, toml_of, write_folder
from kernelcast.problems import load_problem

scalars = (
    st.text(st.characters(codec="utf-8"))
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.booleans()
    | st.floats(allow_nan=False)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=12,
)


@given(values)
def test_toml_is_read_back_as_it_was(value: Any) -> None:
    assert tomllib.loads(f"value = {toml_of(value)}")["value"] == value


def test_nan_and_odd_text_are_toml_too() -> None:
    assert math.isnan(tomllib.loads(f"value = {toml_of(math.nan)}")["value"])
    text = 'a\x7f\n"\\ \ud800'
    assert tomllib.loads(f"value = {toml_of(text)}")["value"] == 'a\x7f\n"\\ ?'
    with pytest.raises(TypeError):
        toml_of(object())


def example(**changes: Any) -> ProblemFile:
    content: dict[str, Any] = {
        "fields": {
            "name": "double",
            "family": "kernelbench",
            "summary": 'twice "x"\x07',
            "entry": "ModelNew",
            "language": "torch",
            "dimensions": ["n"],
        },
        "module": {"init": "", "call": "x", "returns": "out", "reference": "Model"},
        "arguments": [
            {
                "name": "x",
                "role": "input",
                "dtype": "float32",
                "shape": ["n"],
                "fill": {"kind": "normal"},
            },
            {"name": "out", "role": "output", "dtype": "float32", "shape": ["n"]},
        ],
        "cases": {"main": {"dimensions": {"n": 8}}},
        "work": {"flops": "n", "bytes": "8 * n"},
        "tolerance": {"rtol": 1e-4, "atol": 1e-4},
        "comments": {"work": ["a lower\nbound"]},
    }
    return ProblemFile(**{**content, **changes})


REFERENCE = "class Model:\n    pass\n"


def test_a_written_folder_loads(tmp_path: Path) -> None:
    folder = tmp_path / "double"
    for _ in range(2):  # the second import takes the place of the first
        write_folder(folder, example(), REFERENCE, "class ModelNew:\n    pass\n")
    problem = load_problem(folder)
    assert problem.summary == 'twice "x"\x07'
    assert problem.module is not None
    assert problem.module.reference == "Model"
    assert problem.seed_source.startswith("class ModelNew")
    assert "# a lower bound\n[work]" in (folder / "problem.toml").read_text()


def test_nothing_is_written_if_it_would_not_load(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="define Model at its top level"):
        write_folder(tmp_path / "double", example(), "x = 1\n", "")
    twice = example(fields={**example().fields, "dimensions": ["n", "x"]})
    with pytest.raises(ProblemError, match="is named twice"):
        write_folder(tmp_path / "double", twice, REFERENCE, "")
    assert not (tmp_path / "double").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "double").mkdir()
    (tmp_path / "double" / "notes.txt").write_text("mine")
    with pytest.raises(SetupError, match="name another place by --to"):
        write_folder(tmp_path / "double", example(), REFERENCE, "")


def test_summary_and_name() -> None:
    assert summary_of("\n  Sums rows (dim 1), eps 1e-5.\n  More.", "x") == (
        "Sums rows (dim 1), eps 1e-5"
    )
    assert summary_of(None, "instead") == "instead"
    assert summary_of("Multiplies by 3.14 and adds. Then", "x") == "Multiplies by 3.14 and adds"
    assert name_of("1_Square matrix/_") == "1_Square_matrix"
    assert name_of("..") == "problem"
