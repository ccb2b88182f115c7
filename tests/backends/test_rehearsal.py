"""CUDA modules on this CPU: what is right passes, planted faults are told, the rest is undecided.

A build takes ten seconds, so the right kernels share one, and the wrong ones another.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kernelcast.backends._arena import Arena
from kernelcast.backends._module_counts import emulated
from kernelcast.backends._proof import detect_sandbox
from kernelcast.backends._rehearsal import Built, Launch, _lacked, called
from kernelcast.backends._sandbox import landlock_abi
from kernelcast.backends._toolchain import find_cuda_tool
from kernelcast.backends._verify import KnownAnswer
from kernelcast.backends.torch import TorchBackend, _Stage
from kernelcast.devices import find_device
from kernelcast.emulator.ptx import NotEmulated
from kernelcast.types import Case, FailureKind, Module

from .test_torch import argument, kernel, make_problem

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

MODULES = Path(__file__).parents[1] / "modules" / "cuda"

SCALED = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return x * self.scale + 1.0, x.sum(dim=1)
"""


DOUBLED = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return x * 2.0
"""


@pytest.fixture(scope="module")
def backend() -> Iterator[TorchBackend]:
    backend = TorchBackend("RTX-4090", device_cap_s=6.0)
    yield backend
    backend.close()


@pytest.mark.full
def test_a_right_module_passes_and_its_launches_are_known(backend: TorchBackend) -> None:
    problem = make_problem(
        SCALED,
        Module(init="2.5", call="x", returns="y, total"),
        argument("x", "float32", "N", "K"),
        argument("y", "float32", "N", "K", role="output"),
        argument("total", "float32", "N", role="output"),
    )
    evidence = backend.inspect(problem, kernel((MODULES / "right.py").read_text()))
    assert evidence.failure is None
    assert evidence.emulated or evidence.not_emulated
    made = evidence.rehearsal
    assert made is not None
    assert (made.failure, made.undecided) == (None, ""), made
    assert made.stage == "running"
    assert made.cpu_s > 0.0
    launches = {each.kernel: each for each in made.launches}
    assert set(launches) == {
        *("scaled<scalar_t, 4>", "transposed", "kept", "sums", "block_sums<128>", "biased"),
    }
    assert launches["sums"].grid == (256, 1, 1)  # of the timed case, where it was only noted
    assert launches["sums"].block == (128, 1, 1)
    assert launches["sums"].shared_bytes == 16


REVERSED = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x, fault):
        return x.reshape(-1, 64).flip(1).reshape(-1)
"""
# By the name of the fault: the kind and a part of the message.
TOLD = {
    "none": None,
    "no_barrier": (FailureKind.WRONG_RESULT, "elements are wrong"),
    "past_the_end": (FailureKind.CRASH, "wrote past the end of an array of 2048 bytes"),
    "wrong_index": (FailureKind.WRONG_RESULT, "elements are wrong"),
    "unwritten": (FailureKind.WRONG_RESULT, "[5] is nan"),
    "too_many_threads": (FailureKind.CRASH, "invalid configuration argument"),
}


def test_planted_faults_are_told(backend: TorchBackend, tmp_path: Path) -> None:
    """All faults are of one extension, and each has a case."""
    made = make_problem(
        REVERSED,
        Module(init="", call="x, fault", returns="y"),
        argument("x", "float32", "N"),
        argument("y", "float32", "N", role="output"),
    )
    cases = tuple(
        Case(name=name, dimensions={"N": 512, "fault": number}) for number, name in enumerate(TOLD)
    )
    problem = made.model_copy(update={"dimensions": ("N", "fault"), "cases": cases})
    stage, oracle = _Stage(backend, tmp_path), backend._oracles.of(problem)
    built = stage.build(problem, cases, (MODULES / "wrong.py").read_text())
    assert isinstance(built, Built)
    assert not built.failure, built.failure
    rng = np.random.default_rng(0)
    child = None
    for case in cases:
        if child is None or not child.alive:
            child = stage.start(Arena.of(problem), built.program, case)
            assert child.load(60.0) is None
        answer = KnownAnswer.draw(problem, case, oracle, rng, oracle.inputs)
        failure = called(child, answer)
        if (told := TOLD[case.name]) is None:
            assert failure is None
        else:
            assert failure is not None
            assert failure.kind is told[0], failure
            assert told[1] in failure.message
    assert child is not None
    child.close()


def test_a_module_for_one_size_is_told_to_be_right_at_that_size(backend: TorchBackend) -> None:
    made = make_problem(
        DOUBLED,
        Module(init="", call="x", returns="y"),
        argument("x", "float32", "N", "K"),
        argument("y", "float32", "N", "K", role="output"),
    )
    small = [Case(name=f"n{n}", dimensions={"N": n, "K": 4}, timed=False) for n in (2, 3)]
    problem = made.model_copy(update={"cases": (made.cases[0], *small)})
    source = made.seed_source.replace("2.0", "(2.0 if len(x) == 256 else 3.0)")
    rehearsal = backend.inspect(problem, kernel(source)).rehearsal
    assert rehearsal is not None
    assert rehearsal.failure is not None
    assert rehearsal.failure.message.endswith("case main is right")
    assert rehearsal.timed_is_right


@pytest.mark.parametrize(
    ("log", "lacked"),
    [
        ("cuda.cu:3:5: error: 'cudaGraph_t' was not declared in this scope", "cudaGraph_t"),
        ("cuda.cu:3:5: error: 'hsin2pi' was not declared in this scope", ""),
        ("cuda.cu:3:5: error: '__nv_cos' was not declared in this scope", "__nv_cos"),
        ("cuda.cu:3:5: error: 'at::cuda' has not been declared", ""),
        ("cuda.cu:3:5: error: expected ';' before '}' token\n/headers/cuda/x.h:1: note", ""),
        ("cuda.cu:3:5: fatal error: cudnn.h: No such file or directory", "cudnn.h"),
        ("ImportError: kernels.so: undefined symbol: _Z3addN2at6TensorE", ""),
        ("unknown: it has PTX in its text", "PTX"),
    ],
)
def test_what_the_headers_lack_is_no_fault_of_the_module(log: str, lacked: str) -> None:
    assert lacked in _lacked(log)
    assert bool(lacked) == bool(_lacked(log))


def test_launches_are_counted_on_the_emulator(tmp_path: Path) -> None:
    if find_cuda_tool("nvcc") is None:
        pytest.skip("needs nvcc: pip install nvidia-cuda-nvcc, or CUDA's toolkit")
    source = (MODULES / "wrong.py").read_text()
    launch = Launch(
        kernel="reverse",
        grid=(4096, 1, 1),
        block=(64, 1, 1),
        shared_bytes=0,
        count=3,
        arguments=(("pointer", 1 << 20), ("pointer", 1 << 20), ("s32", str(1 << 18)), ("s64", "0")),
    )
    sandbox, device = detect_sandbox(), find_device("RTX-4090")
    thrice = emulated(sandbox, device, source, [launch], "main", tmp_path)
    once = emulated(
        sandbox, device, source, [launch.model_copy(update={"count": 1})], "main", tmp_path
    )
    assert thrice.runtime_s == pytest.approx(3 * once.runtime_s)
    assert once.runtime_s > (2 << 20) / device.bandwidth_bytes_s / 2
    assert once.sectors_per_request == pytest.approx(4.0)  # 32 lanes of 4 bytes in a row
    unknown = launch.model_copy(update={"arguments": (("pointer", 0), *launch.arguments[1:])})
    with pytest.raises(NotEmulated, match="unknown size"):
        emulated(sandbox, device, source, [unknown], "main", tmp_path)
