"""PyTorch modules end to end, in the real sandbox: what is right is timed, the rest is told.

A measurement imports PyTorch three times, so the tests share one backend and measure little.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from kernelcast.backends._sandbox import landlock_abi
from kernelcast.backends.torch import TorchBackend
from kernelcast.canonical import as_kernel
from kernelcast.devices import detect_cpu
from kernelcast.errors import SetupError
from kernelcast.problems import load_problem
from kernelcast.protocols import Backend
from kernelcast.testing import BackendContract
from kernelcast.types import (
    Argument,
    Case,
    Failure,
    FailureKind,
    Fill,
    Kernel,
    Measurement,
    Module,
    Problem,
    Tolerance,
)
from tests.hooks import gate_runs

from .gpu_problems import need_gpu

pytestmark = [
    pytest.mark.measures,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None,
        reason="PyTorch is not installed: pip install 'kernelcast[torch]'",
    ),
    pytest.mark.skipif(
        shutil.which("bwrap") is None or landlock_abi() == 0,
        reason="needs bubblewrap (apt-get install bubblewrap) and a kernel with Landlock",
    ),
]

MODULES = Path(__file__).parents[1] / "modules"
MODEL = """
import os
import time
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, size, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
        self.bias = bias

    def forward(self, x):
        y = torch.relu(x * self.weight) + self.bias
        return y, x.sum(dim=1)
"""
FORWARD = MODEL[MODEL.index("        y = torch.relu") :]


def argument(name: str, dtype: Any, *shape: str, role: Any = "input", **more: Any) -> Argument:
    return Argument(name=name, role=role, dtype=dtype, shape=shape, **more)


def make_problem(
    source: str, module: Module, *arguments: Argument, entry: str = "ModelNew", rtol: float = 1e-4
) -> Problem:
    """A problem whose seed is its reference under the name of the entry."""
    seed = source.replace(f"class {module.reference}(", f"class {entry}(")
    seed = seed.replace(f"def {module.reference}(", f"def {entry}(")
    return Problem(
        name="tiny",
        family="test",
        summary="",
        language="torch",
        entry=entry,
        dimensions=("N", "K"),
        arguments=arguments,
        cases=(
            Case(name="main", dimensions={"N": 256, "K": 512}),
            Case(name="ragged", dimensions={"N": 3, "K": 512}, timed=False),
        ),
        flops="N*K",
        bytes="4*N*K",
        tolerance=Tolerance(rtol=rtol, atol=rtol),
        oracle_source=source,
        seed_source=seed,
        module=module,
    )


@pytest.fixture(scope="module")
def problem() -> Problem:
    return make_problem(
        MODEL,
        Module(init="K, 0.5", call="x", returns="y, total"),
        argument("x", "float32", "N", "K"),
        argument("y", "float32", "N", "K", role="output"),
        argument("total", "float32", "N", role="output"),
    )


@pytest.fixture(scope="module")
def backend() -> Iterator[TorchBackend]:
    backend = TorchBackend(threads=1, device_cap_s=6.0)
    yield backend
    backend.close()


def kernel(source: str) -> Kernel:
    return as_kernel(source, "torch")


def with_forward(problem: Problem, body: str) -> Kernel:
    """The seed with another body of `forward`."""
    assert FORWARD in problem.seed_source
    indented = "".join(f"        {line}\n" for line in body.strip().splitlines())
    return kernel(problem.seed_source.replace(FORWARD, indented))


def failed(measurement: Measurement) -> Failure:
    assert measurement.failure is not None
    assert measurement.timing is None
    return measurement.failure


# ------------------------------------------------------------------------------------ what is right

ATTEMPTS = """
def denied(attempt, *arguments):
    try:
        attempt(*arguments)
    except PermissionError:
        return True
    return False

def all_denied():
    import socket
    here = os.path.dirname(__file__)
    return [
        denied(open, os.path.join(here, "new"), "w"),
        denied(open, __file__, "r+"),
        denied(os.mkdir, os.path.join(here, "folder")),
        denied(os.fork),
        denied(os.posix_spawn, "/bin/true", ["true"], {}),
        denied(os.execv, "/bin/true", ["true"]),
        denied(socket.socket),
        denied(os.kill, os.getppid(), 0),
        denied(os.unlink, __file__),
    ]
"""
TRYING = """
if os.access(os.path.dirname(__file__), os.W_OK):  # where it is built
    return
tried = all_denied()
if not all(tried):
    raise RuntimeError(f"not denied: {tried}")
if open(__file__).readline() != "\\n" and not os.listdir(os.path.dirname(__file__)):
    raise RuntimeError("it may not read what it sees")
weight = self.weight
return torch.addcmul(x.new_full((), self.bias), x, weight).clamp_(min=self.bias), x.sum(1)
"""


def test_a_right_rewrite_is_timed_in_a_sealed_process_and_built_once(
    backend: TorchBackend, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries what a sealed process may not do, and goes on without it."""
    assert isinstance(backend, Backend)
    rewrite = with_forward(problem, TRYING)
    rewrite = kernel(rewrite.source.replace("\nclass ", f"{ATTEMPTS}\nclass ", 1))
    evidence = backend.inspect(problem, rewrite)
    assert evidence.failure is None
    assert evidence.kernel_id == rewrite.id
    assert evidence.toolchain.startswith("torch ")
    backend.inspect(problem, kernel(problem.seed_source))
    monkeypatch.setattr(backend, "compile", lambda *_: pytest.fail("compiled again"))
    measurement = backend.measure(problem, rewrite, seed=1)
    assert measurement.failure is None
    assert measurement.timing is not None
    assert [case.case for case in measurement.timing.cases] == ["main"]
    assert measurement.timing.low <= measurement.timing.log2_speedup <= measurement.timing.high
    assert measurement.sandbox == backend.level == "S3"


FUNCTION = """
import torch

def apply(options, nothing, n, kind, out):
    assert nothing is None and n == out.numel() and kind is torch.bfloat16
    a, (mask, q) = options["a"], options["rest"]
    chosen = torch.where(mask, a * options["scale"], q.to(a.dtype))
    out.copy_(chosen)
    return {"sums": q.sum(dim=1)}
"""


def test_a_function_is_called_as_its_problem_says(backend: TorchBackend) -> None:
    """Dictionaries, None, numbers, torch's names, narrow types, and an output that is written."""
    called = make_problem(
        FUNCTION,
        Module(
            call="{'a': a, 'rest': (mask, q), 'scale': 1.5}, None, N * K, torch.bfloat16, out",
            returns="{'sums': sums}",
            reference="apply",
        ),
        argument("a", "bfloat16", "N", "K"),
        argument("mask", "bool", "N", "K", fill=Fill(kind="integers", low=0, high=2)),
        argument("q", "int8", "N", "K", fill=Fill(kind="integers", low=-128, high=128)),
        argument("out", "bfloat16", "N", "K", role="output"),
        argument("sums", "int64", "N", role="output"),
        entry="custom_kernel",
        rtol=2e-2,
    )
    measurement = backend.measure(called, kernel(called.seed_source), seed=1)
    assert measurement.failure is None
    wrong = called.seed_source.replace("    out.copy_(chosen)\n", "    out[1:] = chosen[1:]\n")
    failure = failed(backend.measure(called, kernel(wrong), seed=1))
    assert failure.kind is FailureKind.WRONG_RESULT
    assert "out[0, " in failure.message


DRAWN = """
import torch

def make(n, k, seed):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(n, k, generator=generator).sort(dim=1).values,)

def double(data):
    assert (data[:, 1:] >= data[:, :-1]).all(), "not as it was drawn"
    return 2 * data

def check(data, output):
    close = torch.allclose(output, 2 * data, rtol=1e-5)
    return close, "" if close else "too far from twice the data"
"""


def test_a_problem_may_draw_its_inputs_and_judge_outputs_itself(backend: TorchBackend) -> None:
    drawn = make_problem(
        DRAWN,
        Module(
            call="data", returns="out", reference="double", draw="make(N, K, seed)", check="check"
        ),
        argument("data", "float32", "N", "K", fill=Fill(kind="drawn")),
        argument("out", "float32", "N", "K", role="output"),
        entry="custom_kernel",
        rtol=1e-2,
    )
    assert backend.measure(drawn, kernel(drawn.seed_source), seed=1).failure is None
    nearly = drawn.seed_source.replace("return 2 * data", "return 2.0001 * data")
    failure = failed(backend.measure(drawn, kernel(nearly), seed=1))
    assert failure.kind is FailureKind.WRONG_RESULT
    assert "too far from twice the data" in failure.message


# ------------------------------------------------------------------------------------ what is not

RAISING = """
if len(x) > 2:
    raise KeyboardInterrupt("\\x1b[2Jred\\a\\u202e")
"""
ONCE_MEASURED = "if not os.access(os.path.dirname(__file__), os.W_OK): "
WRONG = FailureKind.WRONG_RESULT


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    gate_runs(
        4,
        [
            ("return x[:1], x.sum(dim=1)", WRONG, "y has shape (1, 512), not ("),
            (
                "return x.relu_() + self.bias, x.sum(dim=1)",
                FailureKind.CHEATING,
                "changed its input x",
            ),
            (RAISING, FailureKind.CRASH, "line 15, in forward: raise KeyboardInterrupt"),
            # A status of the worker's own, which says that there is no GPU.
            ("os._exit(4)", FailureKind.CRASH, "exited with status 4"),
            ("return x * self.weight, x.sum(dim=1)", WRONG, "elements are wrong"),
            (
                dedent(FORWARD).replace("y, x.sum(dim=1)", "y, x.double().sum(dim=1)"),
                WRONG,
                "total is tor",
            ),
            ("return x", WRONG, "the result is a Tensor, not a sequence of 2"),
            (f"{ONCE_MEASURED}time.sleep(10_000)", FailureKind.TIMEOUT, "no answer within"),
        ],
    ),
    ids=["shape", "input", "raises", "exits", "value", "dtype", "count", "hangs"],
)
def test_failures_are_values(
    backend: TorchBackend, problem: Problem, body: str, kind: FailureKind, words: str
) -> None:
    measurement = backend.measure(problem, with_forward(problem, body), seed=1)
    failure = failed(measurement)
    assert failure.kind is kind, failure
    assert words in failure.message
    assert failure.message.replace("\n", "").isprintable()
    assert 0.0 <= measurement.device_s <= backend.device_cap_s


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("class ModelNew", "class Model", "it defines no ModelNew"),
        ("        super().__init__()\n", "", "AttributeError: cannot assign"),
        ("import os\n", "import no_such_module\n", "No module named 'no_such_module'\nline 2, in"),
    ],
    ids=["no entry", "constructor", "import"],
)
def test_what_cannot_be_built_does_not_compile(
    backend: TorchBackend, problem: Problem, old: str, new: str, words: str
) -> None:
    assert old in problem.seed_source
    broken = kernel(problem.seed_source.replace(old, new))
    failure = backend.inspect(problem, broken).failure
    assert failure is not None
    assert failure.kind is FailureKind.COMPILE_ERROR
    assert words in failure.message


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def forward(:\n    pass\n", "SyntaxError: invalid syntax\nline 1: def forward(:"),
        ("```python\nimport torch\n```\n", "SyntaxError"),
        ("x = 1\0\n", "null bytes"),
        ("(" * 5_000, "SyntaxError"),
        ("-" * 100_000 + "1", "it is no Python"),
    ],
)
def test_what_is_no_python_starts_no_process(
    backend: TorchBackend,
    problem: Problem,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    words: str,
) -> None:
    monkeypatch.setattr("kernelcast.backends.torch.run_tool", lambda *_, **__: pytest.fail("ran"))
    failure = backend.inspect(problem, Kernel(id="k" * 8, language="torch", source=source)).failure
    assert failure is not None
    assert failure.kind is FailureKind.COMPILE_ERROR
    assert words in failure.message


def test_what_a_build_leaves_is_data(tmp_path: Path) -> None:
    """The file is written by a process that a candidate owns."""
    from kernelcast.backends import torch

    assert torch._outcome(tmp_path) is None
    for text in ("", "[]", "{}", '{"failure": ""}', "[" * 10_000, '{"extensions": {"k": 3}}'):
        (tmp_path / "outcome.json").write_text(text)
        assert torch._outcome(tmp_path) is None
    (tmp_path / "outcome.json").write_bytes(
        b'{"failure": "a\\u001b[2Jb", "extensions": {}, "log": [], "cpu_s": 1}'
    )
    outcome = torch._outcome(tmp_path)
    assert outcome is not None
    assert outcome["extensions"] == {}
    assert outcome["failure"].isprintable()


def test_a_backend_that_has_no_pytorch_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SetupError, match=r"pip install 'kernelcast\[torch\]'"):
        TorchBackend()


def test_the_toolchain_says_what_a_time_depends_on(backend: TorchBackend) -> None:
    assert backend.toolchain.endswith(", 1 threads")
    assert backend.device == detect_cpu()


# ------------------------------------------------------------------------------------ what compiles


@pytest.mark.slow
@pytest.mark.parametrize("name", ["06_missing_import", "11_subtracts_in_place"])
def test_an_answer_to_a_kernelbench_problem_is_judged_rightly(
    backend: TorchBackend, name: str
) -> None:
    row_norm = load_problem(MODULES / "imported" / "row_norm")
    source = (MODULES / "answers" / "row_norm" / f"{name}.py").read_text()
    measurement = backend.measure(row_norm, kernel(source), seed=1)
    (expected,) = (line for line in source.splitlines() if line.startswith("# expect:"))
    said = "ok" if measurement.failure is None else measurement.failure.kind
    assert said in expected, measurement.failure


COMPILED = """
@torch.compile
def fused(x, weight, bias):
    return torch.relu(x * weight) + bias, x.sum(dim=1)

class ModelNew"""


@pytest.mark.full
@pytest.mark.slow
def test_a_module_that_torch_compiles_is_timed(backend: TorchBackend, problem: Problem) -> None:
    source = with_forward(problem, "return fused(x, self.weight, self.bias)").source
    measurement = backend.measure(problem, kernel(source.replace("class ModelNew", COMPILED)), 1)
    assert measurement.failure is None
    assert measurement.sandbox == "S3"


@pytest.mark.slow
class TestTorchContract(BackendContract):
    def make(self) -> TorchBackend:
        return TorchBackend(threads=1)

    def problem(self) -> Problem:
        return load_problem(MODULES / "imported" / "row_norm")

    def wrong_source(self) -> str:
        return self.problem().seed_source.replace("(dim=1)", "(dim=1) + 1")


# ---------------------------------------------------------------------------------------- on a GPU


@pytest.fixture(scope="module")
def gpu_backend() -> Iterator[TorchBackend]:
    _, device = need_gpu()
    backend = TorchBackend(device)
    yield backend
    backend.close()


@pytest.mark.gpu
def test_a_module_on_the_gpu_is_timed(gpu_backend: TorchBackend, problem: Problem) -> None:
    measurement = gpu_backend.measure(problem, kernel(problem.seed_source), seed=1)
    assert measurement.failure is None
    assert measurement.timing is not None


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("return x * self.weight, x.sum(dim=1)", WRONG),
        ("return x.relu_() + self.bias, x.sum(dim=1)", FailureKind.CHEATING),
        ("return (torch.relu(x * self.weight) + self.bias).cpu(), x.sum(dim=1)", None),
        ("raise ValueError", FailureKind.CRASH),
    ],
    ids=["value", "input", "copied back", "raises"],
)
def test_failures_on_the_gpu_are_values(
    gpu_backend: TorchBackend, problem: Problem, body: str, kind: FailureKind | None
) -> None:
    measurement = gpu_backend.measure(problem, with_forward(problem, body), seed=1)
    assert (measurement.failure and measurement.failure.kind) == kind
