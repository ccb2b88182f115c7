"""`kernelcast train` as a user types it; `training/test_recipes.py` trains the real small model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kernelcast.cli import main
from kernelcast.dataset import read_rows, to_table, write_rows
from kernelcast.events import Event, RunStarted
from kernelcast.forecasters._source import SourceModel
from kernelcast.store import Store
from kernelcast.testing import example_history, make_kernel
from kernelcast.types import Kernel
from tests.training.conftest import _few_trees, search_rows
from tests.training.tiny_model import write_tiny_model

__all__ = ["_few_trees"]  # a fixture that every test here uses


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(Path("rows.parquet"), to_table(search_rows(12, 8)))


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["train", *arguments])


def told(*arguments: str) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    facts: dict[str, Any] = json.loads(result.stdout)
    return facts


def test_trees_are_trained_and_refreshed_with_the_newest_runs() -> None:
    made = told("trees", "rows.parquet", "--out", "mine")
    assert SourceModel.load(Path(made["model"])).header.trained_on.startswith("made (")
    assert "train trees rows.parquet" in Path(made["card"]).read_text()
    _measure_two_runs()
    before = Path(made["model"]).read_bytes()
    refreshed = told("refresh", "mine", "--store", "runs.db", "--licence", "MIT")
    assert refreshed["new_rows"] == 8
    assert refreshed["swapped"] is (refreshed["crps"]["after"] < refreshed["crps"]["before"])
    assert (Path(made["model"]).read_bytes() != before) is refreshed["swapped"]
    rows = read_rows(Path("mine/rows.parquet"))
    assert rows.num_rows == 96 + refreshed["new_rows"] * refreshed["swapped"]
    again = invoke("refresh", "mine", "--store", "runs.db", "--licence", "MIT")
    assert (again.exit_code == 1) is refreshed["swapped"]


def test_a_language_model_is_refreshed_and_its_former_self_is_kept() -> None:
    pytest.importorskip("trl")
    write_tiny_model(Path("base"))
    options = "--base base --rank 0 --steps 2 --limit 4 --out tuned --learning-rate 3e-3"
    told("supervised", "rows.parquet", *options.split())
    before = Path("tuned/model.safetensors").read_bytes()
    told("supervised", "rows.parquet", *options.split())  # no step is left to do
    assert Path("tuned/model.safetensors").read_bytes() == before
    _measure_two_runs()
    refreshed = told("refresh", "tuned", "--store", "runs.db", "--steps", "2")
    assert refreshed["new_rows"] == 8
    assert refreshed["swapped"] is (refreshed["crps"]["after"] < refreshed["crps"]["before"])
    assert (Path("tuned/model.safetensors").read_bytes() != before) is refreshed["swapped"]
    assert Path("tuned-before").exists() is refreshed["swapped"]
    assert not Path("tuned-refreshed").exists()
    # One of the two runs was held out, and is new to the next refresh.
    assert read_rows(Path("tuned/rows.parquet")).num_rows == 96 + 4 * refreshed["swapped"]


def _measure_two_runs() -> None:
    with Store.open("runs.db") as store:
        for name in ("one", "other"):
            store.create_run(name).append(*_history_of(name))


def _history_of(name: str) -> tuple[list[Event], list[Kernel]]:
    """The example's history on a problem of this name, with kernels of its own."""
    events, kernels = example_history()
    own = {
        kernel.id: make_kernel(kernel.source + f"\nint of_{name}[{len(name)}];" * 9)
        for kernel in kernels
    }
    renamed: list[Event] = []
    for event in events:
        text = event.model_dump_json()
        for key, kernel in own.items():
            text = text.replace(key, kernel.id)
        copied = type(event).model_validate_json(text)
        if isinstance(copied, RunStarted):
            problem = copied.problem.model_copy(update={"name": name})
            copied = copied.model_copy(update={"problem": problem})
        renamed.append(copied)
    return renamed, list(own.values())


@pytest.mark.parametrize("command", ["supervised", "grpo"])
def test_a_dry_run_adds_up_the_memory(command: str) -> None:
    facts = told(command, "rows.parquet", "--configuration", "20b-one-80gb", "--dry-run")
    assert facts["base"] == "openai/gpt-oss-20b"
    assert facts["total_gb"] == pytest.approx(sum(facts["needs_gb"].values()), abs=0.02)
    assert facts["total_gb"] < facts["gpu_gb"] == 80
    screen = invoke(command, "rows.parquet", "--configuration", "20b-one-80gb", "--dry-run")
    assert "20.9e9 x 2 bytes" in screen.output
    assert "of 80 GB" in screen.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("grpo", "rows.parquet"), "--base FOLDER"),
        (("supervised", "rows.parquet", "--dry-run"), "--dry-run needs --configuration"),
        (("supervised", "rows.parquet", "--base", "none.gguf"), "no file none.gguf"),
        (("refresh", "empty"), "make it by `kernelcast train trees`"),
        (("export", "."), "no model could be loaded"),
        (("export", ".", "--format", "adapter"), "holds no adapter"),
    ],
)
def test_what_is_wrong_is_said_with_the_way_out(arguments: tuple[str, ...], said: str) -> None:
    pytest.importorskip("transformers")
    Path("empty").mkdir()
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert said in " ".join(result.stderr.split())


def test_rows_that_no_model_which_ships_may_learn_from_are_refused() -> None:
    write_rows(Path("bare.parquet"), to_table(search_rows(2, 4, licence="unstated")))
    for command in (("trees",), ("supervised", "--base", "any", "--ships")):
        result = invoke(command[0], "bare.parquet", *command[1:])
        assert result.exit_code == 1
        assert "licence" in result.stderr
