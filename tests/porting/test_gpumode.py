"""GPU MODE's tasks become problem folders, or are refused for a reason."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kernelcast.backends._proof import detect_sandbox
from kernelcast.backends._sandbox import Sandbox
from kernelcast.errors import SetupError
from kernelcast.expression import evaluate
from kernelcast.porting import Imported, import_gpumode
from kernelcast.problems import load_problem
from kernelcast.structure import nested

TASKS = Path(__file__).parents[1] / "modules" / "gpumode"

pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
pytest.importorskip("yaml", reason="needs the extra: pip install 'kernelcast[gpumode]'")


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return detect_sandbox()


def imported(task: Path, to: Path, sandbox: Sandbox, **options: bool) -> Imported:
    (one,) = import_gpumode(task, to, sandbox=sandbox, **options)
    return one


def changed(task: str, tmp_path: Path, file: str, old: str, new: str) -> Path:
    """A copy of a task with a part of a file changed."""
    copy = tmp_path / task
    shutil.copytree(TASKS / task, copy)
    text = (copy / file).read_text()
    assert old in text
    (copy / file).write_text(text.replace(old, new))
    return copy


def test_a_function_of_one_tensor(tmp_path: Path, sandbox: Sandbox) -> None:
    one = imported(TASKS / "grayscale", tmp_path, sandbox)
    assert one.folder is not None, one.refused
    problem = load_problem(one.folder)
    assert problem.entry == "custom_kernel"
    assert problem.family == "gpumode"
    assert problem.summary == "Turn colour images into grey ones by a weighted sum of the channels"
    assert problem.module is not None
    assert problem.module.init is None
    assert problem.module.reference == "ref_kernel"
    assert problem.module.call == "data"
    assert problem.module.draw == problem.module.check == ""  # uniform, and a tolerance is known
    data, out = problem.arguments
    assert (data.shape, data.fill.kind) == (("size", "size", "3"), "uniform")
    assert out.shape == ("size", "size")
    assert (problem.tolerance.rtol, problem.tolerance.atol) == (1e-4, 1e-4)
    untimed = {case.dimensions["size"] for case in problem.cases if not case.timed}
    assert untimed == {31, 128, 257}
    assert {case.dimensions["size"] for case in problem.timed_cases} <= {512, 1024, 2048, 4096}
    assert "size = 8192" in (one.folder / "problem.toml").read_text()
    assert problem.seed_source == (TASKS / "grayscale" / "submission.py").read_text()


def test_a_dictionary_of_weights_and_a_preallocated_output(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    one = imported(TASKS / "gated_layer", tmp_path, sandbox)
    assert one.folder is not None, one.refused
    problem = load_problem(one.folder)
    module = problem.module
    assert module is not None
    assert module.call == (
        "(x, mask, {'norm.weight': norm_weight, 'norm.bias': norm_bias, "
        "'gate.weight': gate_weight, 'values.weight': values_weight}, "
        "{'dim': dim, 'hidden': hidden, 'eps': 1e-05}, out)"
    )
    assert module.returns == "out"
    assert module.draw == (
        "[generate_input(rows=rows, dim=dim, hidden=hidden, masked={1: True, 2: False}[masked], "
        "distribution={1: 'normal', 2: 'cauchy'}[distribution], seed=seed)]"
    )
    roles = {argument.name: argument.role for argument in problem.arguments}
    assert roles["out"] == "output"
    assert list(roles.values()).count("output") == 1
    assert {argument.fill.kind for argument in problem.arguments[:-1]} == {"drawn"}
    for case in problem.cases:
        assert nested(module.call, list(roles), case.dimensions)
    assert problem.hidden is not None
    assert problem.hidden.dimensions["masked"] == (1, 2)
    sizes = problem.timed_cases[0].dimensions
    assert evaluate(problem.flops, sizes) == 4 * 256 * 128 * 256
    # Its submission imports the reference, which a candidate cannot.
    assert "reference" in one.notes[-1]
    assert problem.seed_source.endswith("def custom_kernel(data):\n    return ref_kernel(data)\n")
    assert "generate_input" not in problem.seed_source


@pytest.mark.slow
def test_own_checks_keys_without_effect_and_defaults(tmp_path: Path, sandbox: Sandbox) -> None:
    task = changed(
        "grayscale",
        tmp_path,
        "reference.py",
        "check_implementation = make_match_reference(ref_kernel, rtol=1e-4, atol=1e-4)",
        "def check_implementation(data, output):\n"
        "    return bool((ref_kernel(data) - output).abs().max() < 1e-3), 'it is off'\n",
    )
    text = (task / "reference.py").read_text()
    text = text.replace("size: int, seed: int", "size: int, seed: int, scale: int = 1, kind=None")
    (task / "reference.py").write_text(text)
    text = (task / "task.yml").read_text()
    (task / "task.yml").write_text(text.replace('"size": 31,', '"size": 31, "scale": 2,'))
    one = imported(task, tmp_path / "to", sandbox)
    assert one.folder is not None, one.refused
    problem = load_problem(one.folder)
    assert problem.module is not None
    assert problem.module.check == "check_implementation"
    assert set(problem.dimensions) == {"size", "scale"}
    scales = {case.dimensions["size"]: case.dimensions["scale"] for case in problem.cases}
    assert scales[31] != scales[128]
    assert "# scale: 1 is 1, 2 is 2" in (one.folder / "problem.toml").read_text()


@pytest.mark.slow
@pytest.mark.full
def test_full_times_every_benchmark(tmp_path: Path, sandbox: Sandbox) -> None:
    one = imported(TASKS / "grayscale", tmp_path, sandbox, full=True)
    assert one.folder is not None, one.refused
    sizes = {case.dimensions["size"] for case in load_problem(one.folder).timed_cases}
    assert sizes >= {512, 1024, 8192}


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("task.yml", 'lang: "py"', 'lang: "cu"', "only tasks with lang: py"),
        ("task.yml", "tests:", "tests: [", "is not valid YAML"),
        ("task.yml", '{"size": 31,', "{", "a case has no 'size'"),
        ("task.yml", '{"size": 31,', '{"size": [{}],', "numbers and words"),
        ("reference.py", "def ref_kernel", "def kernel", "no function ref_kernel"),
        ("reference.py", "def generate_input", "def inputs", "no function generate_input"),
    ],
)
def test_what_is_no_task_is_refused_unread(
    file: str, old: str, new: str, reason: str, tmp_path: Path, sandbox: Sandbox
) -> None:
    one = imported(changed("grayscale", tmp_path, file, old, new), tmp_path / "to", sandbox)
    assert reason in one.refused
    assert not (tmp_path / "to").exists()


@pytest.mark.slow
def test_a_choice_that_changes_the_structure_is_refused(tmp_path: Path, sandbox: Sandbox) -> None:
    task = changed(
        "gated_layer",
        tmp_path,
        "reference.py",
        '    mask = torch.ones(rows, device="cuda")',
        '    mask = torch.ones(rows if masked else 1, device="cuda")',
    )
    one = imported(task, tmp_path / "to", sandbox)
    assert "masked" in one.refused
    assert "keep cases with one value" in one.refused


def test_the_place_must_be_another(tmp_path: Path, sandbox: Sandbox) -> None:
    task = tmp_path / "grayscale"
    shutil.copytree(TASKS / "grayscale", task)
    assert "another place" in imported(task, tmp_path, sandbox).refused
    with pytest.raises(SetupError, match=r"no task\.yml"):
        list(import_gpumode(tmp_path / "nothing"))
