"""`kernelcast rank` over a run of KernelBench, as a user types it."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kernelcast import dataset
from kernelcast.cli import main

pytest.importorskip("pyarrow", reason="rows need kernelcast[data]")

MODULES = Path(__file__).parent / "modules"
GPU = ("--device", "RTX 4090")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a run of problems 23 and 89, and with their imports."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("23_softmax", "89_scan"):
        shutil.copytree(MODULES / "imported" / name.partition("_")[2], f"problems/{name}")
    Path("run").mkdir()
    right = MODULES / "answers/softmax/05_torch_logsumexp.py"
    sample(23, 0, right.read_text())
    sample(23, 1, (MODULES / "answers/softmax/08_no_maximum.py").read_text())
    sample(23, 2, f"# the first again\n{right.read_text()}")
    sample(89, 0, (MODULES / "answers/scan/07_markdown_fence.py").read_text())


def sample(problem: int, number: int, text: str) -> None:
    Path(f"run/level_1_problem_{problem}_sample_{number}_kernel.py").write_text(text)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def told(*arguments: str) -> Any:
    result = invoke("rank", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_samples_are_ranked_by_problem_for_a_gpu_that_is_not_here() -> None:
    found = told("run", "--problem", "problems", *GPU, "--no-compile", "--share", "0.5")
    assert found["device"] == "RTX-4090"
    assert "measured" not in found
    softmax, scan = found["problems"]
    assert (softmax["number"], softmax["samples"], softmax["cut"]["count"]) == (23, 3, 1)
    assert sorted(each["samples"] for each in softmax["order"]) == [[0, 2], [1]]
    assert softmax["left_out"] == ["sample 2: the same kernel as sample 0"]
    assert (scan["number"], scan["samples"]) == (89, 1)
    sample(90, 0, "import torch\n")
    shown = invoke(
        "rank", "run", "--problem", "problems", *GPU, "--no-compile", "--top", "1"
    ).stdout
    assert "run on RTX-4090: 4 samples of 2 problems; forecast by trees, not measured" in shown
    assert "left out: samples of problems without a folder: 90" in shown
    assert "0 = 2" in shown
    assert "and 1 problem more (--top)" in shown
    lines = invoke(
        "rank", "run", "--problem", "problems", *GPU, "--no-compile", "--csv"
    ).stdout.splitlines()
    table = list(csv.DictReader(lines))
    assert [each["rank"] for each in table] == ["1", "2", "1"]
    assert table[2]["kernel"] == "level_1_problem_89_sample_0_kernel.py"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run",), "name the folder of its problems with --problem"),
        (("run", "--problem", "softmax"), "name the folder of its problems with --problem"),
        (("run", "--problem", "."), "holds no imported problem"),
        (("run", "--problem", "problems", "--reference-ms", "1"), "has its own reference"),
        (("run", "--problem", "problems", "--eval-results", "e.json"), "give --measure"),
        (("softmax", "--measure", "--eval-results", "e.json"), "is for runs of KernelBench"),
    ],
)
def test_mistakes_are_told(arguments: tuple[str, ...], words: str) -> None:
    result = invoke("rank", *arguments)
    assert result.exit_code == 1
    assert words in result.stderr.replace("\n", " ")


def test_modules_in_a_folder_are_of_the_problems_language() -> None:
    Path("k").mkdir()
    shutil.copy(MODULES / "answers/softmax/05_torch_logsumexp.py", "k/mine.py")
    shutil.copy("problems/23_softmax/seed.py", "k/reference.py")
    found = told("k", "--problem", "problems/23_softmax", *GPU, "--no-compile")
    assert ([each["kernel"] for each in found["order"]], found["left_out"]) == (["mine.py"], [])


def test_a_module_that_seems_to_fail_comes_late_and_is_not_ruled_out() -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'kernelcast[torch]'")
    Path("k").mkdir()
    seed = Path("problems/23_softmax/seed.py").read_text()
    Path("k/reference.py").write_text(seed)
    Path("k/broken.py").write_text(seed.replace("def forward(self, x", "def forward(self"))
    shutil.copy(MODULES / "answers/softmax/05_torch_logsumexp.py", "k/mine.py")
    found = told("k", "--problem", "problems/23_softmax", *GPU)
    assert "seeming to fail: 1" in found["compiled"]
    first, last = found["order"]
    assert (first["kernel"], last["kernel"]) == ("mine.py", "broken.py")
    assert 0.0 < last["p_ok"] < first["p_ok"]
    assert "it seems to fail when it is read: TypeError" in last["why"]
    assert (
        "mine.py"
        in invoke(
            "forecast", "k/reference.py", "k/mine.py", "--problem", "problems/23_softmax", *GPU
        ).stdout
    )


@pytest.mark.slow
@pytest.mark.measures
def test_samples_are_measured_and_the_results_are_read_back() -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    at = ("run", "--problem", "problems", "--store", "runs.db", "--measure", "-n", "2")
    measured = told(*at, "--eval-results", "run/eval_results.json")["measured"]
    softmax, scan = measured["problems"]
    assert (softmax["results"], softmax["right"]) == (3, 2)
    assert softmax["fastest"]["sample"] in (0, 2)
    assert (scan["results"], scan["right"], scan["fastest"]) == (1, 0, None)
    assert (measured["compiled"], measured["fast_p"]["0"]) == (3, 0.5)
    results = json.loads(Path("run/eval_results.json").read_text())
    assert list(results) == ["23", "89"]
    right, wrong, again = results["23"]
    assert (right["compiled"], right["correctness"]) == (True, True)
    assert again == {**right, "sample_id": 2}
    assert right["runtime"] == right["runtime_stats"]["mean"] > 0.0
    assert (wrong["compiled"], wrong["correctness"], wrong["runtime"]) == (True, False, -1.0)
    assert "elements are wrong" in wrong["metadata"]["correctness_issue"]
    (broken,) = results["89"]
    assert (broken["compiled"], broken["correctness"]) == (False, False)
    assert "SyntaxError" in broken["metadata"]["compilation_error"]
    rows = list(dataset.to_rows(dataset.import_kernelbench("run")))
    statuses = {(row.problem, row.step): row.status for row in rows}
    assert statuses == {
        ("kb/level1/23", 0): "ok",
        ("kb/level1/23", 1): "wrong_result",
        ("kb/level1/23", 2): "ok",
        ("kb/level1/89", 0): "compile_error",
    }
    first = next(row for row in rows if row.step == 0)
    assert first.log2_speedup == pytest.approx(right["metadata"]["kernelcast"]["log2_speedup"])
