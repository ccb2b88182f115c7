"""A language and its backend that kernelcast does not know: the package in examples/plain_c."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelcast import ComponentSpec, Problem, load_problem, plugins
from kernelcast.backends import run_tool
from kernelcast.backends._proof import detect_sandbox
from kernelcast.testing import BackendContract
from tests.examples import EXAMPLES, install_example

EXAMPLE = EXAMPLES / "plain_c"
SCALE = EXAMPLE / "scale"
PAGE = EXAMPLES.parent / "docs" / "how-to" / "own-backend.md"
MOST_LINES = 65


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the installed package."""
    (tmp_path / "site").mkdir()
    install_example("plain_c", tmp_path / "site")
    return tmp_path / "site"


def kernelcast(
    *arguments: str | Path, cwd: Path, site: Path | None = None
) -> subprocess.CompletedProcess[str]:
    paths = [*([str(site)] if site else []), *filter(None, sys.path)]
    return subprocess.run(
        [sys.executable, "-c", "from kernelcast.cli import main; main()", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"},
        check=False,
    )


@pytest.mark.measures
class TestPlainC(BackendContract):
    """The backend, found by its entry point and by nothing else."""

    @pytest.fixture(autouse=True)
    def _installed(self, site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.syspath_prepend(str(site))
        yield
        sys.modules.pop("kernelcast_c", None)

    def make(self) -> Any:
        return plugins.build("backend", ComponentSpec(name="c"))

    def problem(self) -> Problem:
        return load_problem(SCALE)


@pytest.mark.measures
def test_the_command_line_measures_a_kernel_and_rejects_a_wrong_one(
    tmp_path: Path, site: Path
) -> None:
    ranked = kernelcast(
        *("rank", EXAMPLE / "kernels", "--problem", SCALE, "--measure", "--json"),
        cwd=tmp_path,
        site=site,
    )
    assert ranked.returncode == 0, ranked.stderr
    answer = json.loads(ranked.stdout)
    assert answer["compiled"].startswith("2 of 2 kernels compile with gcc")
    measured = answer["measured"]
    assert measured["measured"] == 2
    assert measured["failures"] == {"wrong_result": 1}
    wrong = measured["first_failures"]["wrong_result"]["kernel_id"]
    named = {kernel["id"]: kernel["kernel"] for kernel in answer["order"]}
    assert named[wrong] == "no_tail.c"
    # Without the package, the run can still be read.
    assert measured["run"] in kernelcast("ls", cwd=tmp_path).stdout
    assert "wrong result" in kernelcast("show", "latest", cwd=tmp_path).stdout
    shown = kernelcast("show", "latest", "--kernel", wrong, "--source", cwd=tmp_path)
    assert shown.stdout.strip() == (EXAMPLE / "kernels/no_tail.c").read_text().strip()
    resumed = kernelcast("resume", "latest", cwd=tmp_path)
    assert resumed.returncode != 0
    assert "no backend is called 'c'" in resumed.stderr


def test_without_the_package_the_problem_is_refused_with_the_fix(tmp_path: Path) -> None:
    search = kernelcast("search", SCALE, cwd=tmp_path)
    assert search.returncode != 0
    assert (
        "set language to one of cpp, cuda, hip, opencl, torch, triton; a package" in search.stderr
    )


def test_the_command_line_knows_the_language(tmp_path: Path, site: Path) -> None:
    known = kernelcast("rank", "x.json", "--language", "c", cwd=tmp_path, site=site)
    assert "x.json" in known.stderr
    assert "language" not in known.stderr
    unknown = kernelcast("rank", "x.json", "--language", "d", cwd=tmp_path, site=site)
    assert "no language 'd': known are c, cpp, cuda" in unknown.stderr


def test_the_page_shows_the_example(site: Path) -> None:
    source = (EXAMPLE / "kernelcast_c.py").read_text()
    blocks = re.findall(r"```(?:python|toml)\n(.*?)```", PAGE.read_text(), re.S)
    assert source in blocks
    points = (EXAMPLE / "pyproject.toml").read_text().partition("[project.entry-points")[2]
    assert any(points.partition("\n\n")[0] in block for block in blocks)
    assert len(source.splitlines()) <= MOST_LINES


WORKER = """
def main(arguments):
    import _confine
    words = _confine.confined(arguments)
    try:
        open("/etc/hostname")
    except OSError:
        print(*words, flush=True)
"""


def test_a_package_may_have_a_script_of_its_own_in_the_sandbox(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "package/my_worker.py").write_text(WORKER)
    task, readable = f"{tmp_path}/package/my_worker.main", (tmp_path / "package",)
    run = run_tool(
        detect_sandbox(), ["it", "works"], tmp_path / "work", 30.0, task=task, readable=readable
    )
    assert (run.status, run.output) == (0, "it works\n")
