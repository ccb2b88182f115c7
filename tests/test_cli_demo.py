"""The demo: the recorded space that it replays, both acts, and what they print."""

from __future__ import annotations

import importlib
import json
from importlib.resources import files
from pathlib import Path
from statistics import fmean

import pytest
from click.testing import CliRunner

from kernelcast.cli import main
from kernelcast.cli.demo import (
    ARMS,
    COLD,
    PUBLISHED,
    PUBLISHED_AFTER,
    PUBLISHED_SPACES,
    RANDOM,
    WARM,
    _known,
    _print_recorded,
    _replay,
    _target,
    _until_near,
)
from kernelcast.dataset.recorded_space import recorded_space
from kernelcast.report.terminal import Terminal
from tests.hooks import DATA

ROOT = Path(__file__).parents[1]
SHIPPED = files("kernelcast.dataset") / "recorded"


def test_the_shipped_space_is_small_and_names_its_source_and_licence() -> None:
    sizes = [len(Path(str(file)).read_bytes()) for file in SHIPPED.iterdir()]
    assert sum(sizes) <= 300_000
    space = recorded_space()
    assert space.licence == "MIT"
    assert len(space.recordings) == 3
    assert len({len(each.entries) for each in space.recordings.values()}) == 1
    words = (SHIPPED / "README.md").read_text()
    for name in space.recordings:
        assert name.removeprefix("NVIDIA GeForce ").removesuffix(" GPU") in words
    for stated in (space.url, space.commit, "MIT License", "Copyright (c)"):
        assert stated in words


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the measured data")
def test_the_shipped_times_are_the_published_ones() -> None:
    content = importlib.import_module("recorded_space").content(DATA)
    space = recorded_space()
    assert content["problem"] == space.problem
    for gpu, recording in space.recordings.items():
        times = [entry.runtime_s and entry.runtime_s * 1e3 for entry in recording.entries.values()]
        told = [None if isinstance(each, str) else each for each in content["runtime_ms"][gpu]]
        assert times == pytest.approx(told)


def test_the_warm_arm_knows_the_two_other_gpus_and_never_the_one_it_searches() -> None:
    here = _target().device.name
    assert [each.device for each in _known()] == [
        name for name in recorded_space().recordings if name != here
    ]
    assert all(each.same_vendor for each in _known())


def test_the_measurements_until_95_percent_are_counted_from_one() -> None:
    assert _until_near([[0.5, 0.95, 1.0], [0.96, 0.96, 0.96], [0.1, 0.2, 0.94]]) == [2, 1, None]


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_fits_the_terminal_and_explains_its_columns(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    runs = [[0.4, 0.5, 0.6, 0.7, 0.8, 0.96], [0.3, 0.5, 0.6, 0.7, 0.8, 0.9]]
    monkeypatch.setattr("kernelcast.cli.demo.OUT", Terminal())
    _print_recorded(dict.fromkeys(ARMS, runs))
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= columns
    words = " ".join(shown.split())
    for word in ("after 5", "95% after", "2 GPUs known", "cold", "random"):
        assert f"{word} " in words
    assert "0.80 ±0.00" in words
    assert recorded_space().url in words


def test_the_published_means_are_those_of_the_bench() -> None:
    by_arm = json.loads((ROOT / "bench" / "results" / "track_t.json").read_text())["spaces"]
    assert len(by_arm["full"]) == PUBLISHED_SPACES
    at = (5, 10, 25, 50).index(PUBLISHED_AFTER)  # the budgets of bench/track_t.py
    for name, arm in ((WARM, "full"), (COLD, "cold"), (RANDOM, "random")):
        mean = fmean(by_arm[arm][space][at] for space in by_arm["full"])
        assert round(mean, 2) == PUBLISHED[name]


def test_an_output_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for options in (
        ("--out", str(tmp_path / "file" / "x")),
        ("--figure", str(tmp_path / "no" / "f")),
    ):
        arguments = ["demo", "--quick", "--out", str(tmp_path / "demo"), *options]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 1
        assert "name another" in result.output or "mkdir -p" in result.output
        assert "replaying" not in result.output


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.measures
def test_the_facts_of_both_acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_first_ten_minutes` looks at its text."""
    monkeypatch.chdir(tmp_path)
    command = ["demo", "--quick", "--json", "--figure", "here.png"]
    result = CliRunner().invoke(main, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["recorded"]["source"] == recorded_space().url
    assert facts["live"]["measured"] == 2
    assert facts["figure"] == str(tmp_path / "here.png")
    assert Path(facts["kernel"]).is_file()

    curves = {name: arm["found"] for name, arm in facts["recorded"]["arms"].items()}
    assert list(curves) == list(ARMS)
    for name, runs in curves.items():
        assert [len(run) for run in runs] == [5, 5]
        for seed, run in enumerate(runs):
            again = _replay(name, seed, 5)  # in this process, not in a worker
            assert run[: len(again)] == pytest.approx(again, abs=1e-5)
            assert run == sorted(run)
    assert curves[RANDOM][0] != curves[RANDOM][1], "seeds differ"
