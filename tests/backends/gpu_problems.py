"""What the kernels under `kernels/` compute, as problems; which tools a test needs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from kernelcast.backends._cuda_device import probe
from kernelcast.backends._sandbox import Sandbox
from kernelcast.backends._toolchain import find_cuda_tool, triton_tools
from kernelcast.canonical import kernel_id
from kernelcast.devices import catalogue
from kernelcast.types import Argument, Case, Device, Fill, Kernel, Language, Problem, Tolerance
from tests.hooks import gate_runs

KERNELS = Path(__file__).with_name("kernels")
CUDA_KERNELS = sorted(path.stem for path in KERNELS.glob("*.cu"))
TRITON_KERNELS = sorted(path.stem for path in KERNELS.glob("[a-z]*.py"))
CUDA_TARGETS = ("sm_80", "sm_90", "sm_100")

# name: arguments (output last), dimensions of a timed and of a ragged small case, the oracle
_VECTOR = ("N", {"N": 1 << 20}, {"N": 1003})
_MATRIX = ("M N", {"M": 512, "N": 1024}, {"M": 19, "N": 77})
_PRODUCT = ("M N K", {"M": 512, "N": 512, "K": 512}, {"M": 37, "N": 53, "K": 41})
_STATED = {
    "vector_add": ("x:N y:N out:N", _VECTOR, "x + y"),
    "axpy": ("x:N y:N out:N", _VECTOR, "2.5 * x + y"),
    "scale": ("x:N out:N", _VECTOR, "2 * x"),
    "softmax": ("x:M,N out:M,N", _MATRIX, "softmax(x)"),
    "spill": ("x:M,N out:M,N", _MATRIX, "softmax(x)"),
    "layernorm": (
        "x:M,N w:N b:N out:M,N",
        _MATRIX,
        "(x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * w + b",
    ),
    "row_sum": ("x:M,N out:M", _MATRIX, "x.sum(1)"),
    "transpose": ("x:M,N out:N,M", _MATRIX, "x.T"),
    "stencil": ("x:M,N out:M,N", _MATRIX, "stencil(x)"),
    "bias_gelu": (
        "x:M,N b:N out:M,N",
        _MATRIX,
        "0.5 * (x + b) * (1 + np.tanh(0.7978845608 * (x + b + 0.044715 * (x + b) ** 3)))",
    ),
    "matmul": ("a:M,K b:K,N c:M,N", _PRODUCT, "a @ b"),
    "half_matmul": ("a:M,K b:K,N c:M,N", _PRODUCT, "a @ b"),
    "histogram": (
        "x:N out:B",
        ("N B", {"N": 1 << 16, "B": 64}, {"N": 5000, "B": 50}),
        "np.bincount(x.astype(int), minlength=B)",
    ),
}
_SPECIAL = ("axpy", "matmul", "scale", "vector_add")  # of these, all inputs are linear
_ORACLE = """
import numpy as np


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def stencil(x):
    y = x.copy()
    around = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]
    y[1:-1, 1:-1] = 0.5 * x[1:-1, 1:-1] + 0.125 * around
    return y


def reference(INPUTS, *, DIMENSIONS):
    (INPUTS,) = (np.asarray(x, np.float64) for x in (INPUTS,))
    return ANSWER
"""


def gpu_problem(name: str, language: Language) -> Problem:
    arguments, (dimensions, timed, ragged), answer = _STATED[name]
    named = [argument.split(":") for argument in arguments.split()]
    counts = name == "histogram"
    inputs = ", ".join(name for name, _ in named[:-1])
    oracle = _ORACLE.replace("ANSWER", answer).replace("INPUTS", inputs)
    oracle = oracle.replace("DIMENSIONS", ", ".join(dimensions.split()))
    loose = 2e-2 if name == "half_matmul" else 1e-4
    return Problem(
        name=name,
        family=name,
        summary=name,
        language=language,
        entry="kernel",
        dimensions=tuple(dimensions.split()),
        arguments=tuple(
            Argument(
                name=argument,
                role="output" if index == len(named) - 1 else "input",
                dtype="int32" if counts else "float32",
                shape=tuple(shape.split(",")),
                fill=Fill(kind="integers", low=0, high="B") if counts else Fill(),
                special=("nan", "inf", "denormal")
                if name in _SPECIAL and index < len(named) - 1
                else (),
            )
            for index, (argument, shape) in enumerate(named)
        ),
        cases=(
            Case(name="main", dimensions=timed),
            Case(name="ragged", dimensions=ragged, timed=False),
        ),
        flops="1",
        bytes="4*" + "*".join(dimensions.split()),
        tolerance=Tolerance(rtol=loose, atol=loose),
        oracle_source=oracle,
        seed_source=source_of(name, language),
    )


def by_turns(targets: Sequence[str]) -> list[Any]:
    """The kernel of tensor cores for all targets, others of all kinds for one each, by turns.

    The gate runs two of the others.
    """
    others = ("softmax", "spill", "histogram", "matmul", "transpose", "vector_add")
    tensor_cores = [("half_matmul", target) for target in targets]
    return gate_runs(len(targets) + 2, [*tensor_cores, *zip(others, cycle(targets), strict=False)])


def source_of(name: str, language: Language) -> str:
    return (KERNELS / f"{name}.{'cu' if language == 'cuda' else 'py'}").read_text()


def gpu_kernel(source: str, language: Language) -> Kernel:
    return Kernel(id=kernel_id(source, language), language=language, source=source)


def edited(source: str, old: str, new: str) -> str:
    """The source with one change, which must be possible."""
    assert old in source
    return source.replace(old, new)


def _needs(present: object, what: str, advice: str) -> None:
    import pytest  # bench/attacks.py reads this file where pytest is not installed

    if not present:
        pytest.skip(f"needs {what}: {advice}")


def gpu_here() -> tuple[str, Device] | None:
    """Target and device of the GPU here; an unknown one gets its peers' figures."""
    answer = probe(Sandbox(frozenset()))
    if answer is None:
        return None
    target, name = answer
    peers = [device for device in catalogue().values() if device.target == target]
    words = set(name.replace("-", " ").split())
    known = (device for device in peers if words & set(device.name.split("-")))
    return target, next(known, peers[0].model_copy(update={"name": name}))


def need_gpu() -> tuple[str, Device]:
    here = gpu_here()
    if here is None:
        import pytest

        pytest.skip("needs an NVIDIA GPU and its driver: see docs/how-to/run-on-a-gpu.md")
    return here


def need_nvcc() -> None:
    _needs(find_cuda_tool("nvcc"), "nvcc", "install NVIDIA's CUDA toolkit")


def need_triton() -> None:
    _needs(triton_tools(), "Triton", "pip install triton")


def need_disassembler() -> None:
    advice = "pip install nvidia-cuda-nvdisasm nvidia-cuda-cuobjdump"
    for tool in ("nvdisasm", "cuobjdump"):
        _needs(find_cuda_tool(tool), tool, advice)


def usage_line(listing: str, function: str) -> dict[str, int]:
    """cuobjdump's own words on a function, read in another way than the product's."""
    (line,) = re.findall(rf"Function {function}:\n\s*(.*)", listing)
    return {key: int(value) for key, value in (field.split(":") for field in line.split())}
