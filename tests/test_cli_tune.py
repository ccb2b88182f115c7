"""`kernelcast tune` as a user types it."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kernelcast import dataset
from kernelcast.cli import main
from kernelcast.errors import SetupError

VALUES: dict[str, Any] = {
    "block": (16, 32, 64, 128, 256),
    "tile": (1, 2, 4, 8),
    "layout": ("row", "column"),
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ("tune", *arguments))


def told(*arguments: str) -> Any:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def cache(device: str, measured: int | None = None, name: str = "gemm") -> str:
    """A published cache: parameters in the keys alone; large blocks with large tiles fail."""
    entries = {}
    for block, tile, layout in itertools.islice(itertools.product(*VALUES.values()), measured):
        time: float | str = 2.0 ** (abs(math.log2(block) - 6) + 0.5 * abs(math.log2(tile) - 2))
        entries[f"{block},{tile},{layout}"] = {
            "time": "CompilationFailedConfig" if block * tile > 1024 else time
        }
    content = {
        "device_name": device,
        "kernel_name": name,
        "problem_size": "64",
        "tune_params_keys": list(VALUES),
        "tune_params": VALUES,
        "cache": entries,
    }
    path = Path(f"{name}-{device}-{measured}.json")
    path.write_text(json.dumps(content))
    return str(path)


def test_the_next_configurations_are_named_with_their_forecasts() -> None:
    answer = told(cache("A100", 12), "-n", "3")
    assert (answer["configurations"], answer["measured"]) == (40, 12)
    assert answer["best"]["seconds"] == pytest.approx(2e-3 * 2**0.5)
    assert answer["stop_reason"] is None
    assert len(answer["next"]) == 3
    for forecast in answer["next"]:
        assert forecast["configuration"].keys() == VALUES.keys()
        assert forecast["interval_s"][0] < forecast["seconds"] < forecast["interval_s"][1]
        assert 0 < forecast["p_ok"] <= 1
    shown = invoke(cache("A100", 12)).stdout
    assert "gemm on A100: 40 configurations, 12 measured" in shown
    assert "best so far: 2.828 ms" in shown
    assert "measure these 5, then ask again" in shown


def test_other_devices_and_restrictions_are_taken_into_account() -> None:
    answer = told(cache("A100", 0), "--history", cache("H100"), "--restrict", "block * tile <= 256")
    assert answer["elsewhere"] == ["H100"]
    first = answer["next"][0]["configuration"]
    assert (first["block"], first["tile"]) == (64, 4)
    assert all(
        n["configuration"]["block"] * n["configuration"]["tile"] <= 256 for n in answer["next"]
    )


def test_rows_are_a_history_too() -> None:
    pytest.importorskip("pyarrow", reason="rows need kernelcast[data]")
    rows = dataset.import_kernel_tuner_cache(cache("H100"), licence="MIT")
    dataset.write_rows(Path("rows.parquet"), rows)
    answer = told(cache("A100", 0), "--history", "rows.parquet")
    assert answer["elsewhere"] == ["H100"]
    first = answer["next"][0]["configuration"]
    assert (first["block"], first["tile"]) == (64, 4)


def test_a_complete_cache_is_replayed_and_is_exhausted() -> None:
    answer = told(cache("A100"), "--replay", "20")
    assert answer["fraction_of_the_optimum"][-1] == 1.0
    assert len(answer["fraction_of_the_optimum"]) == 20
    assert "best possible / best found" in invoke(cache("A100"), "--replay", "20").stdout
    answer = told(cache("A100"))
    assert answer["next"] == []
    assert "the space is exhausted" in answer["stop_reason"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replay", "5"], "this one holds none"),
        (["--history", "other.json"], "give caches of the same kernel"),
        (["--restrict", "block > 999"], "admit none"),
        (["--history", "spec.txt"], "cannot be read as JSON"),
    ],
)
def test_what_is_wrong_is_named(arguments: list[str], message: str) -> None:
    other = json.loads(Path(cache("H100", 0)).read_text())
    other |= {"tune_params_keys": ["block"], "tune_params": {"block": [1]}}
    Path("other.json").write_text(json.dumps(other))
    Path("spec.txt").write_text("no")
    result = invoke(cache("A100", 0), *arguments)
    assert result.exit_code == 1
    assert message in result.output
    assert SetupError.__name__ not in result.output
