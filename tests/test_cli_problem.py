"""`kernelcast problem` as a user types it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kernelcast.cli import main
from kernelcast.cli.problem import import_problems

MODULES = Path(__file__).parent / "modules"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["problem", *arguments])


def test_every_subcommand_has_help_with_an_example() -> None:
    assert sorted(import_problems.commands) == ["gpumode", "kernelbench"]
    commands = [("import", "gpumode"), ("import", "kernelbench"), ("export", "gpumode")]
    for command in ((), ("import",), ("export",), *commands):
        result = invoke(*command, "--help")
        assert result.exit_code == 0
        assert "Example" in result.output


def test_a_folder_is_imported_as_a_table_of_what_was_and_was_not(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    files = tmp_path / "level1"
    files.mkdir()
    shutil.copy(MODULES / "problems" / "softmax.py", files / "23_Softmax.py")
    (files / "broken.py").write_text("class Model: pass")
    result = invoke("import", "kernelbench", "level1", "--to", "made")
    assert result.exit_code == 0, result.output
    assert "made/23_Softmax" in result.output
    assert "defines no function get_inputs" in result.output
    assert "1 of 2 imported" in result.output
    assert "kernelcast search made/23_Softmax" in result.output
    toml = Path("made/23_Softmax/problem.toml").read_text()
    assert 'family = "kernelbench_level1"' in toml


def test_json_says_the_same_and_nothing_imported_is_an_error() -> None:
    Path("broken.py").write_text("class Model: pass")
    result = invoke("import", "kernelbench", "broken.py", "--json")
    assert result.exit_code == 1
    (row,) = json.loads(result.stdout)["problems"]
    assert row["name"] == "broken"
    assert row["folder"] is None
    assert "get_inputs" in row["refused"]
    assert "nothing was imported" in result.stderr


def test_a_folder_without_a_task_is_an_error() -> None:
    result = invoke("import", "gpumode", ".")
    assert result.exit_code == 1
    assert "there is no task.yml" in result.output
