"""The gate fails on an unexpected skip, and tries a measuring test twice on a starved machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import hooks
from tests.hooks import is_expected_skip, lost_s

ROOT = Path(__file__).parents[1]
SKIPS_TESTS = """
import pytest

@pytest.mark.parametrize("what", ["an NVIDIA GPU", "a thing", "a thing"])
def test(what: str) -> None:
    pytest.skip(f"needs {what}")
"""
SKIPS_A_MODULE = """
import pytest

pytest.importorskip("absent_module", reason="needs a module")
"""


SKIPS = {"test_skips.py": SKIPS_TESTS, "test_module.py": SKIPS_A_MODULE}
FAILS_AT_FIRST = """
from pathlib import Path
import pytest

def fails_at_first(name: str) -> None:
    tried = Path(name)
    if not tried.exists():
        tried.touch()
        pytest.fail("it was slow")

@pytest.mark.measures
def test_that_measures() -> None:
    fails_at_first("one")

def test_of_another_kind() -> None:
    fails_at_first("two")
"""
LOSES_TIME = """
from itertools import count
import tests.hooks

tests.hooks.lost_s = count(0, {step}).__next__
"""


def run_gate(
    folder: Path, files: dict[str, str], *options: str, in_ci: str = "true"
) -> tuple[int, str]:
    """Exit code and output of pytest with the gate's hooks on these files."""
    for name, text in files.items():
        (folder / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.hooks", "-p", "xdist", "-rN", *options],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "CI": in_ci,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("options", [[], ["-n", "1"]], ids=["one process", "workers"])
def test_an_unexpected_skip_fails_the_gate(tmp_path: Path, options: list[str]) -> None:
    code, output = run_gate(tmp_path, SKIPS, *options)
    assert code == 1, output
    listed = output.partition("unexpected skips")[2]
    assert "NVIDIA" not in listed
    assert listed.count("needs a thing") == listed.count("needs a module") == 1, output


def test_elsewhere_a_skip_is_no_failure(tmp_path: Path) -> None:
    code, output = run_gate(tmp_path, SKIPS, in_ci="")
    assert code == 0, output


def test_few_reasons_are_expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_expected_skip("Skipped: needs an NVIDIA GPU and its driver")
    assert is_expected_skip("needs root")
    assert not is_expected_skip("needs an OpenCL device")
    monkeypatch.setattr(hooks, "DATA", tmp_path)
    assert not is_expected_skip("needs the measured data in x")
    monkeypatch.setattr(hooks, "DATA", tmp_path / "absent")
    assert is_expected_skip("needs the measured data in x")


@pytest.mark.parametrize(("lost_s", "failed"), [(1000, 1), (0, 2)], ids=["starved", "quiet"])
def test_what_measures_is_tried_twice_on_a_starved_machine(
    tmp_path: Path, lost_s: int, failed: int
) -> None:
    files = {
        "conftest.py": LOSES_TIME.format(step=lost_s),
        "test_fails.py": FAILS_AT_FIRST,
        "pytest.ini": "[pytest]\nmarkers =\n    measures: x\n",
    }
    code, output = run_gate(tmp_path, files, "-n", "1")
    assert code == 1
    assert f"{failed} failed" in output
    assert ("test_that_measures: tried twice" in output) == (failed == 1), output
    assert output.count("Failed: it was slow") == 2


def test_lost_time_is_read() -> None:
    began_s = lost_s()
    assert 0.0 <= began_s <= lost_s()
