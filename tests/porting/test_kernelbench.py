"""KernelBench's files become problem folders, or are refused for a reason."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from kernelcast.backends._inputs import array_bytes
from kernelcast.backends._proof import detect_sandbox
from kernelcast.backends._sandbox import Sandbox
from kernelcast.errors import SetupError
from kernelcast.expression import evaluate
from kernelcast.porting import Imported, import_kernelbench
from kernelcast.problems import load_problem
from kernelcast.structure import nested
from kernelcast.types import Problem
from tests.hooks import gate_runs

MODULES = Path(__file__).parents[1] / "modules"
FILES = sorted((MODULES / "problems").glob("*.py"))
FEW = ("convolution", "rnn_step")  # a confined PyTorch takes more than two seconds to start

pytest.importorskip("torch", reason="needs PyTorch: pip install torch")


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return detect_sandbox()


def imported(source: str, tmp_path: Path, sandbox: Sandbox, **options: bool) -> Imported:
    file = tmp_path / "given.py"
    file.write_text(textwrap.dedent(source))
    (one,) = import_kernelbench(file, tmp_path / "to", sandbox=sandbox, **options)
    return one


def loaded(one: Imported) -> Problem:
    assert one.folder is not None, one.refused
    return load_problem(one.folder)


def file_of(
    inputs: str,
    forward: str = "return x + 1",
    *,
    numbers: str = "n = 8",
    init: str = "",
    parameters: str = "x",
    doc: str = "Adds.",
) -> str:
    return "\n".join(
        [
            "import torch",
            "class Model(torch.nn.Module):",
            f'    """{doc}"""',
            "    def __init__(self, *parameters):",
            "        super().__init__()",
            "        self.parameters_ = parameters",
            f"    def forward(self, {parameters}):",
            textwrap.indent(textwrap.dedent(forward), " " * 8),
            textwrap.dedent(numbers),
            "def get_inputs():",
            textwrap.indent(textwrap.dedent(inputs), "    "),
            "def get_init_inputs():",
            f"    return [{init}]",
        ]
    )


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(f, marks=() if f.stem in FEW else (pytest.mark.slow, pytest.mark.full))
        for f in FILES
    ],
    ids=lambda file: str(file.stem),
)
def test_each_module_is_imported_as_the_stored_folder_says(
    file: Path, tmp_path: Path, sandbox: Sandbox
) -> None:
    (one,) = import_kernelbench(file, tmp_path, sandbox=sandbox)
    problem = loaded(one)
    stored = load_problem(MODULES / "imported" / file.stem)
    # What a call takes depends on the machine, and with it the cases and the limits of hidden ones.
    assert problem.model_copy(update={"cases": (), "hidden": None}) == stored.model_copy(
        update={"cases": (), "hidden": None}
    )
    check(problem)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.stem))
def test_the_stored_folders_load(file: Path) -> None:
    problem = load_problem(MODULES / "imported" / file.stem)
    check(problem)
    assert problem.oracle_source == file.read_text()


def check(problem: Problem) -> None:
    """Structures can be read, and shapes and work are positive, in every case."""
    assert problem.module is not None
    arrays = [argument.name for argument in problem.arguments]
    assert {case.timed for case in problem.cases} == {True, False}
    for case in problem.cases:
        for text in (problem.module.call, problem.module.returns):
            assert nested(text, arrays, case.dimensions)
        assert array_bytes(problem, case.dimensions) == evaluate(problem.bytes, case.dimensions)
    assert problem.hidden is not None
    assert "class ModelNew" in problem.seed_source
    assert "get_inputs" not in problem.seed_source


def test_a_convolution_in_all_its_parts() -> None:
    problem = load_problem(MODULES / "imported" / "convolution")
    assert problem.summary == "A small convolution with bias, ReLU and a mean over space"
    assert problem.module is not None
    assert problem.module.init == "in_channels, out_channels, kernel_size"
    assert problem.arguments[0].shape == ("batch_size", "in_channels", "height", "width")
    assert problem.arguments[1].shape == ("batch_size", "out_channels")
    assert problem.hidden is not None
    assert set(problem.hidden.constraints) == {"height >= kernel_size", "width >= kernel_size"}
    main = problem.timed_cases[0].dimensions
    assert evaluate(problem.flops, main) == 2 * 8 * 16 * 3 * 3 * 3 * 62 * 62


@pytest.mark.slow
def test_extents_of_convolutions_and_divisors_are_understood(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    source = """
        import torch
        import torch.nn as nn

        class Model(nn.Module):
            def __init__(self, channels, filters, kernel, stride, padding, groups, shape):
                super(Model, self).__init__()
                self.conv = nn.Conv2d(channels, filters, kernel, stride=stride, padding=padding)
                self.norm = nn.GroupNorm(groups, filters)
                self.bias = nn.Parameter(torch.randn(shape))
            def forward(self, x):
                return self.norm(self.conv(x)) + self.bias

        batch: int = 16 * 8
        channels, filters = 3, 32
        height = width = 256
        kernel, stride, padding = 5, 2, 1
        groups = 8
        shape = (filters, 1, 1)

        def get_inputs():
            return [torch.rand(batch, channels, height, width)]

        def get_init_inputs():
            return [channels, filters, kernel, stride, padding, groups, shape]
    """
    one = imported(source, tmp_path, sandbox, full=True)
    problem = loaded(one)
    assert "timed at reduced sizes" in one.notes[0]
    # `height = width = 256` is two names of one number.
    out = problem.arguments[1]
    assert out.shape[:2] == ("batch", "filters")
    main = {case.name: case for case in problem.cases}["main"].dimensions
    assert main["batch"] == 128
    assert out.extent(main) == (128, 32, 127, 127)
    assert problem.module is not None
    assert problem.module.init.endswith("groups, (filters, 1, 1)")  # type: ignore[union-attr]
    assert problem.hidden is not None
    assert "filters % groups == 0" in problem.hidden.constraints
    assert "shape = (filters, 1, 1)" not in problem.seed_source
    reduced = {case.name: case for case in problem.cases}["reduced"]
    assert array_bytes(problem, reduced.dimensions) <= 64 << 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # Numbers and words pass, also nested ones; a float that follows a size keeps the size.
        (
            file_of(
                "return [torch.rand(n, n), 3.5, {'a': (torch.randint(2, n, (n,)), None, 'w')}]",
                "return {'y': x * s + d['a'][0]}",
                parameters="x, s, d",
            ),
            {
                "call": "x, 3.5, {'a': (a_1, None, 'w')}",
                "returns": "{'y': y}",
                "draw": "",
            },
        ),
        # What is derived is drawn by the file; an axis is no dimension.
        (
            file_of(
                "return [torch.randn(n, m) * 3 + 1]",
                "return x.sum(dim=axis, keepdim=True)",
                numbers="n, m = 8, 16\naxis = 1\nunused = 7\nflag = True",
            ),
            {"call": "x", "returns": "out", "draw": "get_inputs()"},
        ),
        # What the class itself reads cannot vary: kernels hold the file's own value.
        (
            file_of(
                "return [torch.randn(n, m)]",
                "return (x.reshape(-1, m) * m).sum()",
                numbers="n, m = 8, 16",
            ),
            {"call": "x", "returns": "out"},
        ),
        # Half precision needs more room than float32.
        (
            file_of("return [torch.rand(n, 8, dtype=torch.bfloat16)]", "return torch.exp(x)"),
            {"call": "x", "precision": "float64"},
        ),
        # float64 cannot be asked for where the code names types.
        (
            file_of(
                "return [torch.rand(n, 8)]", "return x @ torch.ones(8, 8, dtype=torch.float32)"
            ),
            {"precision": "native"},
        ),
    ],
)
def test_structures_draws_and_precision(
    source: str, expected: dict[str, str], tmp_path: Path, sandbox: Sandbox
) -> None:
    problem = loaded(imported(source, tmp_path, sandbox))
    assert problem.module is not None
    stated = problem.module.model_dump()
    assert {name: stated[name] for name in expected} == expected
    assert set(problem.dimensions) <= {"n", "m"}
    half = problem.arguments[0].dtype == "bfloat16"
    assert problem.tolerance.rtol == (1e-2 if half else 1e-4)


@pytest.mark.slow
def test_sizes_that_must_be_equal_are_reduced_together(tmp_path: Path, sandbox: Sandbox) -> None:
    source = file_of(
        "return [torch.rand(rows, left), torch.rand(rows, right)]",
        "return x + y",
        numbers="rows = 4096\nleft = 16384\nright = 16384",
        parameters="x, y",
    )
    problem = loaded(imported(source, tmp_path, sandbox))
    (timed,) = problem.timed_cases
    assert timed.name == "reduced"
    assert timed.dimensions["left"] == timed.dimensions["right"]
    assert array_bytes(problem, timed.dimensions) <= 64 << 20
    assert problem.hidden is not None
    low, high = problem.hidden.dimensions["left"]
    assert low == high


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("class Model: pass", "no function get_inputs"),
        ("def get_inputs(): pass", "no class Model"),
        ("class Model: (", "given.py:1"),
    ],
)
def test_files_of_another_kind_are_refused_unread(
    source: str, reason: str, tmp_path: Path, sandbox: Sandbox
) -> None:
    assert reason in imported(source, tmp_path, sandbox).refused


REFUSED = [
    (file_of("return [torch.rand(n)]", "return torch.dropout(x, 0.5, True)"), "random"),
    (file_of("return [torch.rand(n, dtype=torch.complex64)]"), "complex64"),
    (file_of("torch.manual_seed(1)\nreturn [torch.rand(n) * 2]"), "the same inputs each time"),
    (file_of("return [torch.rand(n)]", "raise ValueError('no\x1b[2J luck')"), "no [2J luck"),
    (file_of("return [torch.rand(n)]", "import os\nos._exit(3)"), "ended with status 3"),
    (file_of("return [torch.nn.Linear(n, n)]"), "argument 1 is a Linear"),
    (file_of("return torch.rand(n)"), "returns no list"),
    (file_of("return [torch.rand(n)]", "return 3"), "returns no tensor"),
    (file_of("return [3]", "return torch.ones(n)"), "no argument is a tensor"),
    (file_of("return [torch.rand(n)]", "return x.add_(1)"), "that it also reads"),
    (file_of("return [torch.rand(n)]", "y = x.clone()\nx.add_(1)\nreturn y"), "also reads"),
    (file_of("return [torch.rand(n)]", numbers="n = 8\nopen('/etc/passwd')"), "not load"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "reason"),
    gate_runs(5, REFUSED),
)
def test_what_cannot_be_expressed_is_refused_in_a_sentence(
    source: str, reason: str, tmp_path: Path, sandbox: Sandbox
) -> None:
    one = imported(source, tmp_path, sandbox)
    assert reason in one.refused
    assert one.folder is None
    assert "\n" not in one.refused


def test_a_folder_without_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"there is no \.py file"):
        list(import_kernelbench(tmp_path))
    with pytest.raises(SetupError, match=r"there is no \.py file"):
        list(import_kernelbench(tmp_path / "missing.py"))
