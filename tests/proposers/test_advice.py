"""What a model is advised: lines that fit the signs, and examples that are right."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kernelcast.backends import CppBackend
from kernelcast.backends._opencl_device import opencl_devices
from kernelcast.backends._proof import detect_sandbox
from kernelcast.backends._sandbox import landlock_abi
from kernelcast.backends.cuda import CudaBackend
from kernelcast.backends.opencl import OpenClBackend
from kernelcast.backends.torch import TorchBackend
from kernelcast.backends.triton import TritonBackend
from kernelcast.canonical import as_kernel
from kernelcast.devices import detect_cpu, find_device
from kernelcast.problems import load_problem
from kernelcast.proposers import _advice
from kernelcast.proposers._advice import SIGNS, advice, form, signs
from kernelcast.testing import FAKE_DEVICE, make_kernel
from kernelcast.types import (
    Argument,
    Case,
    CaseSpeed,
    Device,
    Emulated,
    Evidence,
    Launched,
    Module,
    Operators,
    Problem,
    ProposalRequest,
    Rehearsal,
    Tolerance,
)
from tests.backends.gpu_problems import need_nvcc, need_triton

FOLDER = Path(_advice.__file__).parent
PLAYBOOKS = sorted((FOLDER / "playbooks").glob("*.toml"))
SOFTMAX = load_problem("softmax")
GPU = find_device("A100-SXM4-80GB")
CPU = FAKE_DEVICE.model_copy(
    update={"kind": "cpu", "cores": 4, "peak_flops": {"float32": 1e12}, "bandwidth_bytes_s": 2e10}
)


def request(
    problem: Problem = SOFTMAX,
    device: Device = CPU,
    source: str = "#pragma omp parallel for\n",
    runtime_s: float = 1.0,
    **more: Any,
) -> ProposalRequest:
    return ProposalRequest(
        ordinal=0,
        problem=problem,
        device=device,
        parent=make_kernel(source),
        parent_log2_speedup=0.0,
        parent_runtime_s=runtime_s,
        parent_measured=True,
        count=1,
        seed=1,
        **more,
    )


def rehearsed(launches: int, operators: int) -> Rehearsal:
    launched = Launched(kernel="k", grid=(1, 1, 1), block=(32, 1, 1), count=launches)
    return Rehearsal(launches=(launched,), operators=Operators(left={"relu": operators}))


def times(*pairs: tuple[float, float]) -> tuple[CaseSpeed, ...]:
    return tuple(
        CaseSpeed(case=f"c{index}", runtime_s=seconds, log2_speedup=log2)
        for index, (seconds, log2) in enumerate(pairs)
    )


def evidence(**facts: Any) -> Evidence:
    return Evidence(kernel_id="k", toolchain="t", **facts)


def emulated(**facts: Any) -> Evidence:
    stated: dict[str, Any] = {
        "case": "main",
        "runtime_s": 1e-3,
        "spread_log2": 0.5,
        "bound_by": "memory pipe",
        "shares": {},
        "occupancy": 1.0,
        "limiter": "threads",
        "sectors_per_request": 4.0,
        "used_bytes": 1.0,
        "bank_conflicts": 1.0,
        "lane_efficiency": 1.0,
        "lines": (),
        "exact": True,
        "cpu_s": 0.1,
    }
    return evidence(emulated=(Emulated(**(stated | facts)),))


@pytest.mark.parametrize(
    ("sign", "shows", "shows_not"),
    [
        ("small", {"parent_cases": times((5e-5, 0.0))}, {"parent_cases": times((5e-3, 0.0))}),
        (
            "uneven",
            {"parent_cases": times((2e-3, 0.0), (1e-3, 1.5))},
            {"parent_cases": times((2e-3, 0.0), (1e-3, 0.5))},
        ),
        ("near_roofline", {"runtime_s": 1e-9}, {"runtime_s": 1.0}),
        ("far_from_roofline", {"runtime_s": 1.0}, {"runtime_s": 1e-9}),
        ("one_thread", {"source": "void f() {}"}, {}),
        ("spills", {"evidence": evidence(spill_bytes=8)}, {"evidence": evidence(spill_bytes=0)}),
        (
            "scalar",
            {"evidence": evidence(instructions={"vector": 1, "total": 100})},
            {"evidence": evidence(instructions={"fma": 1, "total": 100})},
        ),
        (
            "low_occupancy",
            {"evidence": evidence(occupancy=0.25)},
            {"evidence": evidence(occupancy=0.75)},
        ),
        ("many_operators", {"evidence": evidence(launches=9)}, {"evidence": evidence(launches=1)}),
        (
            "many_operators",
            {"evidence": evidence(rehearsal=rehearsed(launches=2, operators=2))},
            {"evidence": evidence(rehearsal=rehearsed(launches=2, operators=1))},
        ),
        ("uncoalesced", {"evidence": emulated(used_bytes=0.2)}, {"evidence": emulated()}),
        ("bank_conflicts", {"evidence": emulated(bank_conflicts=8.0)}, {"evidence": emulated()}),
        ("idle_lanes", {"evidence": emulated(lane_efficiency=0.4)}, {"evidence": emulated()}),
        ("issue_bound", {"evidence": emulated(bound_by="issue")}, {"evidence": emulated()}),
        ("latency_bound", {"evidence": emulated(bound_by="waiting")}, {"evidence": emulated()}),
        ("memory_bound", {}, {"evidence": emulated(bound_by="float")}),
        (
            "compute_bound",
            {"problem": SOFTMAX.model_copy(update={"flops": "900*R*C"})},
            {"evidence": emulated(bound_by="memory")},
        ),
        (
            "one_thread",
            {
                "problem": SOFTMAX.model_copy(update={"language": "torch"}),
                "source": "load_inline(extra_cflags=['-O3'])",
            },
            {
                "problem": SOFTMAX.model_copy(update={"language": "torch"}),
                "source": "load_inline(extra_cflags=['-fopenmp'])",
            },
        ),
        (
            "eager",
            {"problem": SOFTMAX.model_copy(update={"language": "torch"})},
            {
                "problem": SOFTMAX.model_copy(update={"language": "torch"}),
                "source": "extension = load_inline(name='x')",
            },
        ),
    ],
)
def test_a_sign_is_found_where_it_is(
    sign: str, shows: dict[str, Any], shows_not: dict[str, Any]
) -> None:
    for facts, is_shown in ((shows, True), (shows_not, False)):
        told = {("parent_evidence" if key == "evidence" else key): facts[key] for key in facts}
        assert (sign in signs(request(**told))) == is_shown


def test_advice_is_short_fits_the_language_and_has_the_most_telling_first() -> None:
    assert {path.stem for path in PLAYBOOKS} >= {"cpp", "cuda", "triton", "torch_cpu", "torch_gpu"}
    for path in PLAYBOOKS:
        playbook = tomllib.loads(path.read_text())
        assert set(playbook) <= set(SIGNS), path
        assert all(40 < len(line) < 420 and "\n" not in line for line in playbook.values()), path
    cuda = load_problem("softmax", language="cuda")
    troubled = emulated(used_bytes=0.2, bank_conflicts=8.0, lane_efficiency=0.4, bound_by="issue")
    troubled = troubled.model_copy(update={"spill_bytes": 64})
    lines = advice(request(cuda, GPU, parent_evidence=troubled, parent_cases=times((1e-6, 0.0))))
    assert len(lines) == 4
    assert "spilled" in lines[0]
    assert "neighbouring elements" in lines[1]
    assert advice(request(SOFTMAX.model_copy(update={"language": "mine"}))) == []
    assert form("mine", "cpu") == ""


# ------------------------------------------------------------- the examples, each for real

MODEL = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight
"""
ORACLE = """
import numpy as np


def reference(x, w, *, R, C):
    x, w = x.astype(np.float64), w.astype(np.float64)
    return x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * w
"""


def examples(language: str, kind: str) -> list[str]:
    """The sources in a form."""
    return re.findall(r"```\w+\n(.*?)\n```", form(language, kind), re.DOTALL)


def norm_problem(language: str, seed: str) -> Problem:
    shapes = {"x": ("R", "C"), "w": ("C",), "y": ("R", "C")}
    return Problem(
        name="rms_norm",
        family="norm",
        summary="rows by their root mean square",
        language=language,
        entry="rms_norm",
        dimensions=("R", "C"),
        arguments=tuple(
            Argument(
                name=name,
                role="output" if name == "y" else "input",
                dtype="float32",
                shape=shape,
            )
            for name, shape in shapes.items()
        ),
        cases=(
            Case(name="main", dimensions={"R": 256, "C": 1024}),
            Case(name="ragged", dimensions={"R": 5, "C": 77}, timed=False),
        ),
        flops="4*R*C",
        bytes="8*R*C",
        tolerance=Tolerance(rtol=1e-4, atol=1e-5),
        oracle_source=ORACLE,
        seed_source=seed,
    )


@pytest.mark.measures
def test_the_example_in_cpp_is_measured() -> None:
    (source,) = examples("cpp", "cpu")
    problem = norm_problem("cpp", source)
    backend = CppBackend(allow_unsafe=True)
    outcome = backend.measure(problem, as_kernel(source, "cpp"), 1)
    backend.close()
    assert outcome.timing is not None, outcome.failure


def test_the_example_in_cuda_compiles_and_is_right_when_emulated() -> None:
    need_nvcc()
    (source,) = examples("cuda", "gpu")
    problem = norm_problem("cuda", source)
    backend = CudaBackend("sm_80", allow_unsafe=True)
    kernel = as_kernel(source, "cuda")
    assert backend.inspect(problem, kernel).compiles
    assert backend.verify(problem, kernel, 1) is None
    backend.close()


def test_the_example_in_triton_is_right_when_interpreted() -> None:
    need_triton()
    (source,) = examples("triton", "gpu")
    problem = norm_problem("triton", source)
    backend = TritonBackend("sm_80", allow_unsafe=True)
    assert backend.verify(problem, as_kernel(source, "triton"), 1) is None
    backend.close()


@pytest.mark.measures
def test_the_example_in_opencl_is_measured() -> None:
    if not opencl_devices(detect_sandbox()):
        pytest.skip("needs an OpenCL device: apt-get install ocl-icd-libopencl1 pocl-opencl-icd")
    (source,) = examples("opencl", "cpu")
    problem = norm_problem("opencl", source)
    backend = OpenClBackend(device=detect_cpu().model_copy(update={"cores": 1}), allow_unsafe=True)
    outcome = backend.measure(problem, as_kernel(source, "opencl"), 1)
    backend.close()
    assert outcome.timing is not None, outcome.failure


@pytest.mark.measures
@pytest.mark.full  # a build of a minute; `test_torch.py` builds another one
@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None
    or shutil.which("bwrap") is None
    or landlock_abi() == 0,
    reason="needs PyTorch, bubblewrap and a kernel with Landlock",
)
def test_the_example_of_a_module_in_cpp_is_built_and_measured() -> None:
    """A compiler builds it, and a process that has none loads it."""
    (source,) = examples("torch", "cpu")
    seed = MODEL.replace("Model(", "ModelNew(")
    arrays = norm_problem("torch", seed).arguments
    problem = norm_problem("torch", seed).model_copy(
        update={
            "entry": "ModelNew",
            "arguments": (arrays[0], arrays[2]),
            "oracle_source": MODEL,
            "hidden": None,
            "module": Module(init="C, 1e-6", call="x", returns="y"),
        }
    )
    backend = TorchBackend()
    outcome = backend.measure(problem, as_kernel(source, "torch"), 1)
    built = backend.inspect(problem, as_kernel(source, "torch"))
    backend.close()
    assert outcome.timing is not None, outcome.failure
    assert built.instructions["vector"] > 0
    assert built.code_bytes > 0


def test_the_examples_of_modules_for_a_gpu_compile_and_interpret(tmp_path: Path) -> None:
    """The CUDA one up to its code, the launcher in Triton's interpreter on this CPU."""
    cuda, triton = examples("torch", "gpu")
    need_nvcc()
    backend = CudaBackend("sm_80", emulates=False, allow_unsafe=True)
    problem = norm_problem("python", cuda).model_copy(update={"entry": "ModelNew"})
    found = backend.inspect(problem, as_kernel(cuda, "python"))
    backend.close()
    assert found.failure is None, found.failure
    assert found.registers
    need_triton()
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    check = """
    model, ours = Model(77, 1e-6), ModelNew(77, 1e-6)
    with torch.no_grad():
        ours.weight.copy_(model.weight.normal_())
        x = torch.randn(5, 77)
        torch.testing.assert_close(ours(x), model(x))
    """
    script = tmp_path / "launcher.py"  # Triton reads a kernel's source from its file
    script.write_text("\n".join([triton, MODEL, *(line[4:] for line in check.splitlines())]))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, str(script)], check=True, env=environment, timeout=600)
