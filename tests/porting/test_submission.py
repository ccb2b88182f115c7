"""Kernels become files that GPU MODE takes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernelcast.backends._sandbox import landlock_abi
from kernelcast.canonical import as_kernel
from kernelcast.cli import main
from kernelcast.errors import SetupError
from kernelcast.parts import Parts, read_run
from kernelcast.porting import import_gpumode, submission_file
from kernelcast.problems import load_problem
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.types import Problem
from tests.hooks import gate_runs
from tests.model_server import Reply, ScriptedServer

TASKS = Path(__file__).parents[1] / "modules" / "gpumode"
KERNEL = "import torch\n\n\ndef custom_kernel(data):\n    return data\n"


def task(seed: str = KERNEL) -> Problem:
    problem = load_problem("fp8_quant")
    return problem.model_copy(
        update={"entry": "custom_kernel", "name": "sorted", "seed_source": seed}
    )


def directives(text: str) -> dict[str, list[str]]:
    """What GPU MODE's bot reads: comment lines up to the first other line, the last one counts."""
    stated = {}
    for line in text.splitlines():
        if not line.startswith(("#", "//")):
            break
        words = line.split()
        if words[0] in ("#!POPCORN", "//!POPCORN"):
            stated[words[1].lower()] = words[2:]
    return stated


@pytest.mark.parametrize(
    ("seed", "source", "named", "expected"),
    [
        (KERNEL, KERNEL, "sort_v2", {"leaderboard": ["sort_v2"], "gpus": ["A100", "H100"]}),
        (KERNEL, KERNEL, None, {"leaderboard": ["sorted"], "gpus": ["A100", "H100"]}),
        (
            f"#!POPCORN leaderboard sort\n{KERNEL}",
            f"#!POPCORN leaderboard other\n#!POPCORN gpu L4\n\n# mine\n{KERNEL}",
            None,
            {"leaderboard": ["sort"], "gpus": ["A100", "H100"]},
        ),
    ],
    ids=["named", "by the problem", "by the task"],
)
def test_the_header_is_ours(
    seed: str, source: str, named: str | None, expected: dict[str, list[str]]
) -> None:
    text, notes = submission_file(task(seed), as_kernel(source, "torch"), named, ["A100", "H100"])
    assert directives(text) == expected
    assert text.endswith(source[source.index("import torch") :])
    assert text.count("#!POPCORN") == 2
    assert any("--leaderboard" in note for note in notes) == (expected["leaderboard"] == ["sorted"])


def test_what_gpu_mode_refuses_is_said() -> None:
    source = KERNEL.replace("return data", "torch.cuda.current_stream()\n    return data")
    text, notes = submission_file(task(), as_kernel(source, "torch"), "sort")
    assert directives(text) == {"leaderboard": ["sort"]}
    assert "'stream'" in notes[0]
    with pytest.raises(SetupError, match="fp8_quant is no task of GPU MODE: its entry is kernel"):
        submission_file(load_problem("fp8_quant"), as_kernel(KERNEL, "torch"))


# ------------------------------------------------------------------------------- the round trip

UTILS = """
import torch

def make_match_reference(reference, rtol, atol):
    def check(data, output):
        close = torch.allclose(output, reference(data), rtol=rtol, atol=atol)
        return close, "" if close else "mismatch found"
    return check

class DeterministicContext:
    def __enter__(self):
        return self
    def __exit__(self, *_):
        pass
"""
EVALUATE = """
import copy, importlib, json, sys
sys.path.insert(0, ".")
import torch
from kernelcast.backends import _module
_module.on_cpu()  # "cuda" is the CPU, for want of a GPU
from reference import check_implementation, generate_input
cases, *names = map(json.loads, sys.argv[1:])
verdicts = {name: [] for name in names}
for name in names:
    custom_kernel = importlib.import_module(name).custom_kernel
    for case in cases:
        data = generate_input(**case)
        verdicts[name].append(check_implementation(copy.deepcopy(data), custom_kernel(data))[0])
print(json.dumps(verdicts))
"""
ANSWERS = {
    "grayscale": (
        """import torch


def custom_kernel(data):
    weights = torch.tensor([0.299, 0.587, 0.114], device=data.device)
    return torch.mv(data.view(-1, 3), weights).view(data.shape[:2])
""",
        """import torch
from task import input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    return data[..., 0] * 0.299 + data[..., 1] * 0.587 + data[..., 2] * 0.144
""",
    ),
    "gated_layer": (
        """import torch
import torch.nn.functional as F
from task import input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    x, mask, weights, config, out = data
    bias, eps = weights["norm.bias"], config["eps"]
    normal = F.layer_norm(x, (config["dim"],), weights["norm.weight"], bias, eps)
    both = F.linear(normal, torch.cat([weights["gate.weight"], weights["values.weight"]]))
    gate, values = both.chunk(2, dim=1)
    torch.mul(gate.sigmoid_().mul_(mask[:, None]), values, out=out)
    return out
""",
        """import torch
import torch.nn.functional as F


def custom_kernel(data):
    x, mask, weights, config, out = data
    normal = F.layer_norm(x, (config["dim"],), weights["norm.weight"], None, config["eps"])
    gate = torch.sigmoid(F.linear(normal, weights["gate.weight"]))
    torch.mul(gate * mask[:, None], F.linear(normal, weights["values.weight"]), out=out)
    return out
""",
    ),
}
"""A right answer and a wrong one to each task."""
LARGEST = 1 << 10


@pytest.mark.slow
@pytest.mark.measures
@pytest.mark.skipif(
    shutil.which("bwrap") is None or landlock_abi() == 0,
    reason="needs bubblewrap (apt-get install bubblewrap) and a kernel with Landlock",
)
@pytest.mark.parametrize("name", gate_runs(1, ["gated_layer", "grayscale"]))
def test_a_task_goes_through_import_search_and_submission(name: str, tmp_path: Path) -> None:
    """The file that comes out passes the task's own check, and a wrong kernel does not."""
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    yaml = pytest.importorskip("yaml", reason="needs the extra: pip install 'kernelcast[gpumode]'")
    (one,) = import_gpumode(TASKS / name, tmp_path)
    assert one.folder is not None, one.refused

    right, wrong = ANSWERS[name]
    replies = iter(
        Reply(json.dumps({"idea": "it", "moves": [], "kernel": text})) for text in (right, wrong)
    )
    store = tmp_path / "store.db"
    with ScriptedServer(lambda _: next(replies, Reply("{}"))) as server:
        run = read_run(
            {
                "problem": str(one.folder),
                "proposer": "llm",
                "proposer.concurrency": 1,
                "policy": "measure_all",
                "backend.threads": 1,
                "budget.candidates": 2,
            },
            model={"base_url": server.base_url, "model": "recorded"},
        )
        parts = Parts.build(run.spec.components, run.problem)
        with closing(parts.farm), Store.open(store) as opened:
            search = Search(run.problem, parts, opened, spec=run.spec)
            result = search.run(run.budget)
    assert dict(result.state.failures) == {"wrong_result": 1}

    folder = tmp_path / "submitted"
    shutil.copytree(TASKS / name, folder)
    (folder / "utils.py").write_text(UTILS)
    spec = yaml.safe_load((folder / "task.yml").read_text())
    cases = [case for case in spec["tests"] + spec["benchmarks"] if max(_sizes(case)) <= LARGEST]

    kernels = {
        "best": "best",
        "right": as_kernel(right, "torch").id,
        "wrong": as_kernel(wrong, "torch").id,
    }
    for file, kernel in kernels.items():
        out = folder / f"{file}.py"
        options = ["--kernel", kernel, "--out", str(out), "--store", str(store)]
        written = CliRunner().invoke(
            main, ["problem", "export", "gpumode", result.run, "--leaderboard", "mine", *options]
        )
        assert written.exit_code == 0, written.output
        assert directives(out.read_text()) == {"leaderboard": ["mine"]}
    evaluated = subprocess.run(
        [sys.executable, "-c", EVALUATE, *map(json.dumps, [cases, *kernels])],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    verdicts = json.loads(evaluated.stdout)
    assert all(verdicts["best"])
    assert all(verdicts["right"])
    assert not all(verdicts["wrong"])


def _sizes(case: dict[str, object]) -> list[int]:
    return [value for key, value in case.items() if isinstance(value, int) and key != "seed"]
