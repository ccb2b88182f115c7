"""`make measure`: the table of figures and bars, and what it does without running a bench."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import measure  # benches are scripts: pytest has their folder on its path
from measure import BENCHES, FIGURES, RESULTS, Figure

ROOT = Path(__file__).parents[1]


def measured(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "bench" / "measure.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_bench_is_in_the_table() -> None:
    scripts = {path.stem for path in (ROOT / "bench").glob("[a-z]*.py")}
    scripts -= {"measure", "shared_rows"}  # no benches
    assert set(BENCHES) == scripts
    assert {figure.bench for figure in FIGURES} == scripts


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: f"{figure.bench}:{figure.path}")
def test_every_figure_and_its_bar_are_in_the_committed_result(figure: Figure) -> None:
    reading = figure.of(json.loads((RESULTS / f"{figure.bench}.json").read_text()))
    assert reading.value is not None
    if figure.at_least is not None or figure.at_most is not None:
        assert reading.bar is not None


def test_the_report_holds_each_committed_figure_against_its_bar() -> None:
    done = measured("--report")
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    reported = json.loads(last)
    assert len(reported["figures"]) == len(FIGURES) == len(lines) - 1
    assert not reported["skipped"]
    (worst,) = (line.split() for line in lines if "worst_from_1ms" in line)
    published = json.loads((RESULTS / "overhead.json").read_text())["worst_from_1ms"]
    assert published > 1.5
    bar = ["MISSED", "at", "most", "1.5"]
    assert worst == ["overhead", "worst_from_1ms", f"{published:.4g}", *bar]
    (lost,) = (line.split() for line in lines if line.split()[:2] == ["resume", "lost"])
    assert lost == ["resume", "lost", "0", "reached", "at", "most", "0"]


def test_an_unknown_bench_is_refused_with_the_names_there_are() -> None:
    done = measured("--report", "--only", "timing", "timings")
    assert done.returncode == 2
    assert "no bench is named timings; there are canaries" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("figure", "result", "reached"),
    [
        (Figure("b", "x", at_least=2), {"x": 2}, True),
        (Figure("b", "x", at_least=2), {"x": 1.9}, False),
        (Figure("b", "x", at_most=2), {"x": 2}, True),
        (Figure("b", "x", at_most=0), {"x": 1}, False),
        (Figure("b", "x/0.1/1", at_most="y"), {"x": {"0.1": [9, 3]}, "y": 2}, False),
        (Figure("b", "x"), {"x": 1}, None),
        (Figure("b", "x", at_least=2), {"x": None}, None),
        (Figure("b", "x/3", at_least=2), {"x": [1]}, None),
    ],
)
def test_a_bar_is_reached_or_missed(
    figure: Figure, result: dict[str, Any], reached: bool | None
) -> None:
    assert figure.of(result).reached is reached


def test_a_bench_that_lacks_a_part_is_skipped_and_one_that_breaks_is_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    scripts = {
        "canaries": "print('at work'); print('{\"undetected\": 3}'); raise SystemExit(1)",
        "attacks": "raise SystemExit(2)",
        "timing": "1 / 0",
    }
    for name, script in scripts.items():
        (tmp_path / f"{name}.py").write_text(script)
    monkeypatch.setattr(measure, "__file__", str(tmp_path / "measure.py"))
    monkeypatch.setattr(measure, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(sys, "argv", ["measure.py", "--only", *scripts])
    assert measure.main() == 1
    out, err = capfd.readouterr()
    reported = json.loads(out.splitlines()[-1])
    (row,) = reported["figures"]
    assert (row["bench"], row["value"], row["reached"]) == ("canaries", 3.0, False)
    assert reported["skipped"] == [
        "attacks is skipped: it needs a part that is not installed, see above"
    ]
    assert reported["crashed"] == ["timing ended with exit code 1 and no result"]
    assert "at work" in err
    assert "ZeroDivisionError" in err
