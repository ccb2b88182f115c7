"""Modules for a GPU that is not here, read in the real sandbox: honest, broken and hostile ones.

The process that reads them imports PyTorch once, so the tests share it.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelcast.backends._proof import detect_sandbox
from kernelcast.backends._reading import LATE, Reader
from kernelcast.backends._sandbox import landlock_abi
from kernelcast.backends.torch import TorchBackend
from kernelcast.canonical import as_kernel
from kernelcast.problems import load_problem
from kernelcast.types import FailureKind, Problem, Rehearsal

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None,
        reason="PyTorch is not installed: pip install 'kernelcast[torch]'",
    ),
    pytest.mark.skipif(
        shutil.which("bwrap") is None or landlock_abi() == 0,
        reason="needs bubblewrap (apt-get install bubblewrap) and a kernel with Landlock",
    ),
]
SOFTMAX = """
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = '''
#include <torch/extension.h>
__global__ void softmax_kernel(const float* x, float* y, int columns, float t) {}
torch::Tensor softmax(torch::Tensor x, double t) {
    auto y = torch::empty_like(x);
    softmax_kernel<<<x.size(0), 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1), t);
    return y;
}
'''
ops = load_inline(
    name="ops",
    cpp_sources="torch::Tensor softmax(torch::Tensor x, double t);",
    cuda_sources=SOURCE,
    functions=["softmax"],
)


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        return ops.softmax(x.cuda().contiguous(), self.temperature)
"""
RETURN = "return ops.softmax(x.cuda().contiguous(), self.temperature)"


@pytest.fixture(scope="module")
def problem() -> Problem:
    return load_problem(str(Path(__file__).parents[1] / "modules" / "imported" / "softmax"))


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    reader = Reader(detect_sandbox(), cpu_s=4)
    yield reader
    reader.close()


def changed(old: str, new: str) -> str:
    assert old in SOFTMAX
    return SOFTMAX.replace(old, new)


def test_an_honest_module_is_read_to_its_extension(reader: Reader, problem: Problem) -> None:
    read = reader.read(problem, SOFTMAX)
    assert (read.failure, read.undecided, read.stage) == (None, "", "reading")
    operators = read.operators
    assert operators is not None
    assert operators.own == {"softmax": 1}
    assert not operators.left
    assert "softmax" in operators.replaced
    out_bytes = 4 * 256 * 2048  # of the timed case
    assert operators.moved_bytes == 2 * out_bytes
    assert operators.reference_moved_bytes == 4 * out_bytes  # it divides first


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        (SOFTMAX + "\n```\n", FailureKind.COMPILE_ERROR, "SyntaxError"),
        (changed("class ModelNew", "class Model"), FailureKind.COMPILE_ERROR, "entry"),
        (changed('["softmax"]', '["soft"]'), FailureKind.COMPILE_ERROR, "do not declare"),
        (changed("name=", "nvcc="), FailureKind.COMPILE_ERROR, "TypeError"),
        (changed("nn.Module)", "nn.Modul)"), FailureKind.COMPILE_ERROR, "AttributeError"),
        (changed("self, temperature", "self"), FailureKind.CRASH, "TypeError"),
        (changed("x.cuda()", "y.cuda()"), FailureKind.CRASH, "NameError"),
        (changed(", self.temperature)", ")"), FailureKind.CRASH, "called with 1"),
        (changed("ops.softmax", "ops.forward"), FailureKind.CRASH, "binds no forward"),
        (changed(RETURN, "return x.sum(1)"), FailureKind.WRONG_RESULT, "shape"),
    ],
)
def test_a_broken_module_is_found_out(
    reader: Reader, problem: Problem, source: str, kind: FailureKind, words: str
) -> None:
    read = reader.read(problem, source)
    assert read.failure is not None
    assert read.failure.kind == kind
    assert words in read.failure.message


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("import not_installed_here", "not_installed_here"),
        ("assert x.shape[0] % 128 == 0, 'rows'", "rows"),
        ("raise RuntimeError('CUDA error: no driver')", "CUDA"),
        ("os._exit(0)", "ended early"),
        ("while True: pass", LATE),
        ("os.kill(os.getppid(), 9)", "PermissionError"),
        ("os.fork()", "PermissionError"),
        ("open('/etc/passwd').read()", "Error"),
        ("os.open('/tmp/left', os.O_CREAT | os.O_WRONLY)", "PermissionError"),
    ],
)
def test_what_says_nothing_of_the_module_is_undecided(
    reader: Reader, problem: Problem, line: str, words: str
) -> None:
    source = changed(RETURN, f"{line}\n        {RETURN}").replace(
        "import torch\n", "import os, torch\n", 1
    )
    read = reader.read(problem, source)
    assert read.failure is None
    assert words in read.undecided
    assert reader.read(problem, SOFTMAX).operators is not None  # the next one is read as ever


def test_a_device_that_is_not_here_is_no_failure(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = TorchBackend(device="RTX-4090", rehearses="reading")
    if backend._finds_device():
        pytest.skip("needs a machine without this GPU")
    asked = []

    def read(_problem: Problem, source: str) -> Rehearsal:
        asked.append(source)
        return Rehearsal(undecided="not asked")

    monkeypatch.setattr(backend._reader, "read", read)
    evidence = backend.inspect(problem, as_kernel(SOFTMAX, "torch"))
    again = backend.inspect(problem, as_kernel(f"# faster\n{SOFTMAX}", "torch"))
    backend.close()
    assert evidence.failure is None
    assert not evidence.is_built
    assert evidence.rehearsal is not None
    assert (again.rehearsal, len(asked)) == (evidence.rehearsal, 1)
