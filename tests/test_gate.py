"""The gate fails on a test that was skipped for a reason which is not expected there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import conftest
from tests.conftest import is_expected_skip

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


def gate(folder: Path, *options: str, **variables: str) -> tuple[int, str]:
    """Exit code and output of pytest with this project's conftest on two files that skip."""
    (folder / "test_skips.py").write_text(SKIPS_TESTS)
    (folder / "test_module.py").write_text(SKIPS_A_MODULE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "xdist", "-rN", *options],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            **variables,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("options", [[], ["-n", "1"]], ids=["one process", "workers"])
def test_an_unexpected_skip_fails_the_gate(tmp_path: Path, options: list[str]) -> None:
    code, output = gate(tmp_path, *options, CI="true")
    assert code == 1, output
    listed = output.partition("unexpected skips")[2]
    assert "NVIDIA" not in listed
    assert listed.count("needs a thing") == listed.count("needs a module") == 1, output


def test_elsewhere_a_skip_is_no_failure(tmp_path: Path) -> None:
    code, output = gate(tmp_path, CI="")
    assert code == 0, output


def test_few_reasons_are_expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_expected_skip("Skipped: needs an NVIDIA GPU and its driver")
    assert is_expected_skip("needs root")
    assert not is_expected_skip("needs an OpenCL device")
    monkeypatch.setattr(conftest, "DATA", tmp_path)
    assert not is_expected_skip("needs the measured data in x")
    monkeypatch.setattr(conftest, "DATA", tmp_path / "absent")
    assert is_expected_skip("needs the measured data in x")
