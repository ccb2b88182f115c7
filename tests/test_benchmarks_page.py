"""Published figures are those of bench/results, and README stays short."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import benchmarks_page
from benchmarks_page import PAGE, PICTURE, README, ROOT

FIRST_SCREEN, WHOLE = 40, 120


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The published files and the results they come from, to be changed."""
    shutil.copytree(ROOT / "bench/results", tmp_path / "bench/results")
    (tmp_path / "docs").mkdir()
    for name in (PAGE, PICTURE, README):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_published_figures_are_those_of_the_results() -> None:
    assert not benchmarks_page.stale(), "run: python tools/benchmarks_page.py"


def test_every_result_has_a_section() -> None:
    sections = re.findall(r"^{(\w+)\[made_by\]}$", benchmarks_page.TEMPLATE.read_text(), re.M)
    assert sorted(sections) == sorted(benchmarks_page.read_results())


def test_a_changed_number_on_the_page_is_found(copy: Path) -> None:
    _replace(copy / PAGE, "0.973", "0.983")
    assert benchmarks_page.stale(copy) == [str(PAGE)]


def test_a_changed_number_in_readme_is_found(copy: Path) -> None:
    quoted = benchmarks_page.best_found(benchmarks_page.read_results()["track_t"])["cold"][25]
    _replace(copy / README, f"{quoted:.2f} with kernelcast", "0.99 with kernelcast")
    assert benchmarks_page.stale(copy) == [str(README)]


def test_a_changed_result_makes_page_readme_and_picture_stale(copy: Path) -> None:
    path = copy / "bench/results/track_t.json"
    result = json.loads(path.read_text())
    for values in result["spaces"]["cold"].values():
        values[2] = 0.5
    path.write_text(json.dumps(result))
    assert benchmarks_page.stale(copy) == [str(PAGE), str(README), str(PICTURE)]


def test_a_missed_bar_is_said_to_be_missed(copy: Path) -> None:
    path = copy / "bench/results/attacks.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"accepted": 1}))
    before = (copy / PAGE).read_text().count("**missed**")
    after = benchmarks_page.page(benchmarks_page.read_results(copy)).count("**missed**")
    assert after == before + 1


def test_a_quick_result_is_not_published(copy: Path) -> None:
    path = copy / "bench/results/attacks.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quick": True}))
    with pytest.raises(SystemExit, match="attacks"):
        benchmarks_page.read_results(copy)


def test_the_picture_holds_the_numbers_that_it_shows(tmp_path: Path) -> None:
    results = benchmarks_page.read_results()
    benchmarks_page.draw(results, tmp_path / "drawn.png")
    numbers = benchmarks_page.numbers_in(tmp_path / "drawn.png")
    assert numbers == benchmarks_page.picture_data(results)


def test_readme_quotes_figures_only_where_they_are_checked() -> None:
    text = benchmarks_page.BLOCK.sub("", (ROOT / README).read_text())
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    assert not re.findall(r"\b0\.\d+\b|\b\d+(?:\.\d+)?x\b|\d%", prose)


def test_readme_is_short_and_its_first_screen_complete() -> None:
    lines = (ROOT / README).read_text().splitlines()
    assert len(lines) <= WHOLE
    screen = "\n".join(lines[:FIRST_SCREEN])
    for part in (
        f"]({PICTURE})",
        "$ pip install .",
        "$ kernelcast demo",
        "kernel: kernelcast-demo/best.cpp",
        "**Use it**",
        "**Do not use it**",
        "**Status: alpha.**",
    ):
        assert part in screen, f"the first {FIRST_SCREEN} lines lack {part}"
