"""`kernelcast rank` and `kernelcast train` as a user types them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kernelcast import dataset
from kernelcast.cli import main
from kernelcast.problems import load_problem
from tests.forecasters.test_llm import letters
from tests.model_server import Reply, ScriptedServer
from tests.test_cli_data import cache
from tests.test_dataset_recordings import row

pytestmark = pytest.mark.alone

pytest.importorskip("pyarrow", reason="rows need kernelcast[data]")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def told(*arguments: str) -> Any:
    result = invoke("rank", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def folder() -> None:
    Path("k").mkdir()
    seed = load_problem("softmax").seed_source
    Path("k/reference.cpp").write_text(seed)
    Path("k/copy.cpp").write_text(f"// the same\n{seed}")
    Path("k/doubled.cpp").write_text(seed.replace("float", "double"))
    Path("k/notes.txt").write_text("not a kernel")


def test_a_folder_is_ranked_against_its_reference_without_copies() -> None:
    folder()
    found = told("k")
    assert found["kernels"] == 1
    assert found["forecaster"] == "trees"
    (only,) = found["order"]
    assert only["kernel"] == "doubled.cpp"
    assert only["chance_fastest"] == 1.0
    shown = invoke("rank", "k").stdout
    assert "forecast by trees, not measured" in shown
    assert "measure the first 1" in shown


def test_a_model_ranks_and_is_asked_as_told() -> None:
    folder()
    with ScriptedServer(letters({"M": 1.0}), Reply("no")) as server:
        at = ("k", "--base-url", server.base_url, "--model", "m")
        found = told(*at, "--ask", "direct")
        told(*at, "--samples", "2", "--bins", "paper", "--set", "max_output_tokens=77")
        wrong = invoke("rank", *at, "--set", "nonsense")
    assert found["forecaster"] == "llm"
    assert found["order"][0]["median_speedup"] > 4.0
    direct, *reasoned = server.requests
    assert direct["max_tokens"] == 1
    assert [each["max_tokens"] for each in reasoned] == [77, 77]
    assert [each["temperature"] for each in reasoned] == [1.0, 1.0]
    bins = [
        "tie" in each["response_format"]["json_schema"]["schema"]["properties"] for each in reasoned
    ]
    assert bins == [False, False]
    assert wrong.exit_code == 1
    assert "--set takes OPTION=VALUE" in wrong.stderr


def test_a_folder_without_a_reference_is_told() -> None:
    Path("k").mkdir()
    Path("k/a.cpp").write_text("int a;")
    result = invoke("rank", "k")
    assert result.exit_code == 1
    assert "--reference or --problem" in result.stderr


def test_rows_of_other_devices_rank_a_device_that_was_never_measured() -> None:
    rows = [
        row(number, device=device, runtime_s=time_s, row_id=f"{device}{number}")
        for device in ("NVIDIA one", "NVIDIA two")
        for number, time_s in enumerate((4e-3, 1e-3, 2e-3, 8e-3, 3e-3), 1)
    ]
    dataset.write_rows(Path("rows.parquet"), dataset.to_table(rows))
    found = told("rows.parquet", "--device", "NVIDIA three", "--share", "0.4")
    assert found["cut"]["count"] == 2
    order = [each["kernel"] for each in found["order"]]
    assert order[:2] == ["A=2", "A=3"]
    assert found["order"][0]["why"].startswith("top 20.0% on NVIDIA")
    as_csv = list(
        csv.DictReader(invoke("rank", "rows.parquet", "--device", "x", "--csv").stdout.splitlines())
    )
    assert [each["kernel"] for each in as_csv][:2] == ["A=2", "A=3"]
    known = invoke("rank", "rows.parquet", "--device", "NVIDIA one")
    assert known.exit_code == 1
    assert "all 5 kernels" in known.stderr


def test_a_tuner_cache_teaches_and_the_rest_of_its_space_is_ranked() -> None:
    name = cache("add", "A100")
    content = json.loads(Path(name).read_text())
    content["tune_params"] = {"block": [1, 2, 3, 4, 5, 6, 7, 8]}
    Path(name).write_text(json.dumps(content))
    found = told(name, "--restrict", "block < 8")
    assert (found["known"], found["kernels"], found["device"]) == (4, 3, "A100")
    t1 = {
        "KernelSpecification": {"KernelName": "add"},
        "ConfigurationSpace": {
            "TuningParameters": [{"Name": "block", "Type": "int", "Values": "[1, 2, 4]"}],
            "Conditions": [{"Expression": "block > 1", "Parameters": ["block"]}],
        },
    }
    Path("t1.json").write_text(json.dumps(t1))
    assert told("t1.json", "--device", "A100")["kernels"] == 2


def test_a_file_that_is_no_space_is_told() -> None:
    Path("x.json").write_text("{}")
    result = invoke("rank", "x.json")
    assert result.exit_code == 1
    assert "neither a Kernel Tuner cache nor a T1 specification" in result.stderr


def test_what_cannot_be_measured_is_told() -> None:
    folder()
    result = invoke("rank", "k", "--measure")
    assert result.exit_code == 1
    assert "give --problem" in result.stderr


@pytest.mark.slow
def test_a_ranked_folder_is_measured() -> None:
    folder()
    found = told("k", "--problem", "softmax", "--measure", "--store", "runs.db")
    measured = found["measured"]
    assert measured["measured"] + measured["dropped"] + measured["trusted"] == 1


def test_training_refuses_rows_without_a_licence() -> None:
    dataset.write_rows(Path("rows.parquet"), dataset.to_table([row(1, licence="unstated")]))
    result = invoke("train", "rows.parquet", "--out", "model")
    assert result.exit_code == 1
    assert "licence" in result.stderr
