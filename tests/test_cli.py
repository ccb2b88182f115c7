"""The commands as a user types them, in process with click's runner; real compiles where named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kernelcast.backends._sandbox import Sandbox, prove
from kernelcast.cli import main


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


def test_every_command_has_help_with_an_example() -> None:
    for name in main.commands:
        result = invoke(name, "--help")
        assert result.exit_code == 0
        assert f"kernelcast {name}" in result.output, f"{name} --help shows no example"


def test_a_scaffolded_problem_runs_is_shown_listed_and_resumed(tmp_path: Path) -> None:
    """`init`, then a real search with real compiles, then everything that reads it."""
    assert invoke("init", "mine").exit_code == 0
    assert (tmp_path / "mine" / "problem.toml").is_file()

    found = invoke("search", "mine", "-n", "4", "--pool", "8", "--name", "r", "--out", "best.cpp")
    assert found.exit_code == 0, found.output
    assert "best speedup" in found.output
    assert "kernel" in Path("best.cpp").read_text()

    shown = json.loads(invoke("show", "r", "--json").stdout)
    assert shown["measured"] == 4
    assert shown["ended"] == "budget spent: all measurements made"
    assert shown["best"]["speedup"] >= 1.0
    for_people = invoke("show", "r", "--figure", "best.png")
    assert "Archive" in for_people.output
    assert Path("best.png").read_bytes().startswith(b"\x89PNG")
    assert invoke("show", "r", "--kernel").stdout == Path("best.cpp").read_text()

    assert "r" in invoke("ls").output
    assert json.loads(invoke("ls", "--json").stdout)[0]["run"] == "r"

    resumed = invoke("resume", "r", "-n", "6", "--json")
    assert resumed.exit_code == 0, resumed.output
    assert json.loads(resumed.stdout)["measured"] == 6


def test_init_does_not_overwrite(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").touch()
    result = invoke("init", "mine")
    assert result.exit_code == 1
    assert "not empty: choose another folder" in result.output


def test_mistakes_end_in_one_line_that_names_the_fix() -> None:
    unknown = invoke("search", "no-such-problem")
    assert unknown.exit_code == 1
    assert "softmax" in unknown.output
    assert "Traceback" not in unknown.output
    assert "--base-url and --model" in invoke("search", "softmax", "--forecaster", "llm").output
    unpriced = invoke("search", "softmax", "--forecast-usd", "1")
    assert "--price-in and --price-out" in unpriced.output
    assert "installed: measure_all" in invoke("search", "softmax", "--policy", "nope").output
    assert "no run 'nope'" in invoke("show", "nope").output


def test_ls_of_an_empty_store_says_how_to_begin() -> None:
    assert "kernelcast search" in invoke("ls").output
    assert json.loads(invoke("ls", "--json").stdout) == []


def test_doctor_tells_what_works_and_what_to_install() -> None:
    result = invoke("doctor")
    assert result.exit_code == 0
    assert "C++ kernels" in result.output
    level = prove(Sandbox.detect()).level
    assert f"level {level}" in result.output
    assert "kernelcast[ray]" in result.output or "works    ray" in result.output
    rows = {row["check"]: row for row in json.loads(invoke("doctor", "--json").stdout)}
    assert rows["C++ kernels"]["works"]
    assert rows["sandbox"]["works"] == (level != "S0")
    denied = rows["canaries, measure, all in force"]
    assert denied["works"] == (level == "S3")
    assert "secret" in denied["detail"]


def test_doctor_fails_where_no_search_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    result = invoke("doctor")
    assert result.exit_code == 1
    assert "apt-get install g++" in result.output


def test_forecast_without_a_model_is_the_trees_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text('extern "C" void kernel() {}\n')
    (tmp_path / "b.cpp").write_text('extern "C" void kernel() { int x = 0; (void)x; }\n')
    shown = invoke("forecast", "a.cpp", "b.cpp", "--problem", "softmax", "--reference-ms", "5")
    assert "not a measurement" in shown.output
    assert "by trees trained on other kernels" in shown.output
    data = json.loads(invoke("forecast", "a.cpp", "b.cpp", "--device", "H100", "--json").stdout)
    assert sum(data["bins"].values()) == pytest.approx(1.0)
    assert data["forecaster"] == "trees"
    (tmp_path / "c.txt").touch()
    assert "known endings" in invoke("forecast", "a.cpp", "c.txt").output


@pytest.mark.slow
def test_demo_compares_both_arms_at_equal_measurements(tmp_path: Path) -> None:
    result = invoke("demo", "-n", "4", "--seeds", "1", "--json")
    data = json.loads(result.stdout)
    measured = {arm: row["measured"] for arm, row in data["arms"].items()}
    assert measured == {"measure everything": 4, "selective": 4}
    assert Path(data["figure"]).read_bytes().startswith(b"\x89PNG")
    table = invoke("demo", "-n", "3", "--seeds", "1")
    assert "best speedup (measured twice)" in table.output
    assert "kernelcast-demo.png" in table.output.replace("\n", "")
