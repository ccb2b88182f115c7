"""`kernelcast eval` and `kernelcast replay` as a user types them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kernelcast import dataset
from kernelcast.cli import main
from tests.test_dataset_recordings import row
from tests.test_dataset_trials import SEARCH

pytest.importorskip("pyarrow", reason="rows need kernelcast[data]")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    space = [
        row(number, runtime_s=4e-3 / number, log2_speedup=math.log2(number))
        for number in range(1, 13)
    ]
    dataset.write_rows(Path("space.parquet"), dataset.to_table(space))
    dataset.write_rows(Path("search.parquet"), dataset.to_table(SEARCH))


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def test_forecasters_are_judged_side_by_side() -> None:
    result = invoke("eval", "search.parquet", "--forecaster", "roofline", "--out", "judged")
    assert result.exit_code == 0, result.output
    assert "roofline" in result.stdout
    assert "hindsight" in result.stdout
    assert "4 recorded kernels (3 timed), 1 problems" in result.stdout
    told = json.loads(Path("judged/eval.json").read_text())
    assert [each["forecaster"] for each in told] == ["roofline", "hindsight"]
    assert told[0]["scores"]["crps"][0] > 0.0
    assert Path("judged/eval.png").read_bytes().startswith(b"\x89PNG")


def test_the_anchor_and_the_bins_are_chosen() -> None:
    common = ("eval", "search.parquet", "--forecaster", "roofline", "--json")
    best, reference, paper = (
        json.loads(invoke(*common, *more).stdout)["evaluations"][0]["scores"]
        for more in ((), ("--anchor", "reference"), ("--bins", "paper"))
    )
    assert best["crps"] != reference["crps"]
    assert best["crps"] == paper["crps"]
    assert best["half_brier"] != paper["half_brier"]


def test_a_space_is_replayed() -> None:
    result = invoke(
        "replay", "space.parquet", "--forecaster", "roofline", "-n", "4", "--seeds", "2",
        "--policy", "measure_all", "--policy", "top_k", "--figure", "found.png", "--json",
    )  # fmt: skip
    arms = json.loads(result.stdout)["arms"]
    assert set(arms) == {"measure_all", "top_k"}
    assert arms["measure_all"]["spaces"]["runs"] == 2
    assert 0.0 < arms["measure_all"]["spaces"]["at_4"] <= 1.0
    assert Path("found.png").read_bytes().startswith(b"\x89PNG")


def test_a_search_is_replayed() -> None:
    result = invoke("replay", "search.parquet", "--forecaster", "roofline")
    assert result.exit_code == 0, result.output
    assert "Recorded searches: measurements saved" in result.stdout
    measure_all = next(line for line in result.stdout.splitlines() if "measure_all" in line)
    assert [cell.strip() for cell in measure_all.split("│")[2:5]] == ["0", "1", "0"]


@pytest.mark.parametrize("command", ["eval", "replay"])
def test_what_is_not_there_is_told(command: str) -> None:
    result = invoke(command, "space.parquet", "--problem", "nothing like this")
    assert result.exit_code == 1
    assert "no row's problem contains 'nothing like this'" in result.stderr
