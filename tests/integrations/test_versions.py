"""Each adapter passes its tests with the lowest and the newest version that it admits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSIONS = {
    "helion": ("helion==1.5.0 torch==2.13.0", "helion==1.5.1 torch==2.13.0"),
    "kernel_tuner": ("kernel_tuner==1.4.0", "kernel_tuner==1.5.0"),
    "openevolve": ("openevolve==0.3.2", "openevolve==0.4.0"),
    "optuna": ("optuna==4.0.0", "optuna==5.0.0"),
    "shinka": ("shinka-evolve==0.0.5", "shinka-evolve==0.0.7"),
    "triton": ("triton==3.3.0", "triton==3.9.0"),
}
"""Lowest and newest by the name of the adapter. What a system needs beside itself goes with it."""


@pytest.mark.full
@pytest.mark.parametrize(
    ("adapter", "packages"),
    [(adapter, packages) for adapter, both in VERSIONS.items() for packages in both],
)
def test_an_adapter_works_with_a_version(adapter: str, packages: str, tmp_path: Path) -> None:
    def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=ROOT, text=True, capture_output=True, env={**os.environ, **environment}
        )

    python = str(tmp_path / "bin" / "python")
    uv = (sys.executable, "-m", "uv")
    wheels = os.environ.get("UV_FIND_LINKS", "/opt/wheels")
    links = ("--find-links", wheels) if Path(wheels).is_dir() else ()
    made = run(*uv, "venv", "-q", "--python", sys.executable, str(tmp_path), "--allow-existing")
    assert made.returncode == 0, made.stderr
    install = (*uv, "pip", "install", "-q", "--system-certs", *links, "--python", python)
    needs = ("pytest", "hypothesis", "psycopg[binary]", "pyarrow", "-e", ".", *packages.split())
    installed = run(*install, *needs)
    assert installed.returncode == 0, installed.stderr
    test = f"tests/integrations/test_{adapter}.py"
    tested = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", test, CI="")
    assert tested.returncode == 0, tested.stdout[-3000:]
    assert " passed" in tested.stdout
