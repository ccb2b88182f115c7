"""`kernelcast data` as a user types it: import, describe, split, export, and mistakes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kernelcast import dataset
from kernelcast.cli import main
from kernelcast.cli.data import data
from kernelcast.store import Store
from kernelcast.testing import example_history
from tests.test_dataset import parquet
from tests.test_dataset_forecasts import PREDICTIONS

pytest.importorskip("pyarrow", reason="needs the extra: pip install 'kernelcast[data]'")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["data", *arguments], catch_exceptions=False)


def cache(kernel: str, device: str) -> str:
    """A Kernel Tuner cache on disk, and its name."""
    entries = {
        str(block): {"block": block, "time": time, "compile_time": 1.0, "benchmark_time": 1.0}
        for block, time in ((1, 4.0), (2, 2.0), (3, 1.0), (4, "RuntimeFailedConfig"))
    }
    content = {
        "device_name": device,
        "kernel_name": kernel,
        "problem_size": 64,
        "tune_params_keys": ["block"],
        "cache": entries,
    }
    name = f"{kernel}-{device}.json"
    Path(name).write_text(json.dumps(content))
    return name


def imported() -> None:
    files = [cache(kernel, device) for kernel in ("add", "mul") for device in ("A100", "H100")]
    result = invoke("import", "kernel-tuner", *files, "--licence", "MIT", "--out", "rows.parquet")
    assert result.exit_code == 0, result.output
    assert "16 rows written to rows.parquet" in result.output


def test_every_subcommand_has_help_with_an_example() -> None:
    assert sorted(data.commands) == ["describe", "export", "import", "split"]
    for name in data.commands:
        result = invoke(name, "--help")
        assert result.exit_code == 0
        assert f"kernelcast data {name}" in result.output


def test_files_are_imported_described_and_split() -> None:
    imported()
    facts = json.loads(invoke("describe", "rows.parquet", "--json").stdout)
    assert (facts["rows"], facts["problems"], facts["searches"]) == (16, 2, 4)
    assert facts["by"]["status"] == {"ok": {"rows": 12, "ok": 12}, "crash": {"rows": 4, "ok": 0}}
    assert facts["by"]["licence"] == {"MIT": {"rows": 16, "ok": 12}}
    for_people = invoke("describe", "rows.parquet").output
    assert "16 rows, 2 problems, 4 searches" in for_people
    assert "crash" in for_people

    by_problem = invoke(
        "split", "rows.parquet", "--by", "problem", "--folds", "2", "--out", "folds", "--json"
    )
    told = json.loads(by_problem.stdout)["splits"]
    assert told == [{"name": f"fold{fold}", "train": 8, "test": 8} for fold in (0, 1)]
    sides = [dataset.read_rows(f"folds/fold0.{side}.parquet") for side in ("train", "test")]
    dataset.check_leaks(sides[0], sides[1], "problem")

    by_device = invoke(
        "split", "rows.parquet", "--by", "device", "--hold-out", "A100", "--out", "d"
    )
    assert "no leaks; written to d" in by_device.output
    assert set(dataset.read_rows("d/held_out.test.parquet")["device"].to_pylist()) == {"A100"}


def test_a_template_and_names_that_the_file_lacks_can_be_given() -> None:
    Path("kernel.cl").write_text("kernel void k() {}")
    result = {
        "configuration": {"block": 1},
        "times": {},
        "invalidity": "correct",
        "correctness": 1,
        "measurements": [{"name": "time", "value": 1.0, "unit": "ms"}],
    }
    Path("t4.json").write_text(json.dumps({"results": [result]}))
    options = ["--problem", "p", "--device", "d", "--language", "opencl", "--template", "kernel.cl"]
    told = invoke("import", "t4", "t4.json", *options, "--out", "rows.parquet", "--json")
    assert json.loads(told.stdout)["rows"] == 1
    row = next(dataset.to_rows(dataset.read_rows("rows.parquet")))
    assert (row.problem, row.device, row.language) == ("p", "d", "opencl")
    assert row.template == "kernel void k() {}"


def test_the_papers_forecasts_are_imported_from_several_files() -> None:
    for name, repeat in (("one.parquet", 0), ("two.parquet", 1)):
        parquet(Path(name), [each | {"repeat": repeat} for each in PREDICTIONS])
    files = ("one.parquet", "two.parquet", "--out", "forecasts.parquet")
    told = json.loads(invoke("import", "paper-predictions", *files, "--json").stdout)
    assert told == {
        "out": "forecasts.parquet",
        "forecasters": {"m": {"forecasts": 8, "unparsed": 2}},
    }
    assert len(dataset.read_forecasts("forecasts.parquet")) == 8
    shown = invoke("import", "paper-predictions", *files).stdout
    assert "8 forecasts written to forecasts.parquet" in shown
    assert ["m", "8", "2"] in [line.split() for line in shown.splitlines()]
    refused = invoke("import", "paper-predictions", *files, "--device", "d")
    assert refused.exit_code == 1
    assert "leave it out here" in refused.output


def test_a_run_is_exported(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store:
        store.create_run("r").append(*example_history())
    told = invoke("export", "r", "--store", "store.db", "--out", "run.parquet", "--json")
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["by"]["status"] == {
        "ok": {"rows": 3, "ok": 3},
        "reference": {"rows": 1, "ok": 0},
    }
    assert dataset.read_rows("run.parquet").num_rows == 4


def test_mistakes_end_in_one_line_that_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    imported()
    Path("text.json").write_text("no")
    mistakes = {
        ("import", "kernel-tuner", "text.json", "--out", "x"): "cannot be read as JSON",
        ("import", "t4", "text.json", "--out", "x"): "--problem, --device",
        ("import", "kernelbench", ".", "--problem", "p", "--out", "x"): "leave it out here",
        ("describe", "text.json"): "cannot be read as Parquet",
        ("export", "nope", "--store", "s.db", "--out", "x"): "there is no store at s.db",
        ("split", "rows.parquet", "--by", "problem", "--out", "x"): "either into how many folds",
        ("split", "rows.parquet", "--by", "device", "--hold-out", "B200", "--out", "x"): (
            "no device 'B200' in these rows; there are A100, H100"
        ),
    }
    for arguments, fix in mistakes.items():
        result = invoke(*arguments)
        assert result.exit_code == 1, arguments
        assert fix in result.output
        assert "Traceback" not in result.output
    assert not Path("x").exists()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    missing = invoke("describe", "rows.parquet")
    assert missing.exit_code == 1
    assert "pip install 'kernelcast[data]'" in missing.output
