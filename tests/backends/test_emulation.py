"""Compiled CUDA kernels judged without a GPU: right ones, and ones with a planted fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelcast.backends import _emulation
from kernelcast.backends.cuda import CudaBackend
from kernelcast.emulator.ptx import NotEmulated
from kernelcast.errors import SetupError
from kernelcast.types import FailureKind
from tests.backends.gpu_problems import edited, gpu_kernel, gpu_problem, need_nvcc

RIGHT = ("half_matmul", "histogram", "layernorm", "matmul", "softmax", "spill", "transpose")
CRASH, WRONG = FailureKind.CRASH, FailureKind.WRONG_RESULT
# kernel, what is replaced, by what, and how it is found
FAULTS = [
    ("matmul", "        __syncthreads();\n#pragma", "#pragma", WRONG, "two warps use byte"),
    ("softmax", "    __syncthreads();\n    if (threadIdx.x % 32", "    if (threadIdx.x % 32", WRONG,
     "its warps race"),
    ("vector_add", "i < N", "i <= N", CRASH, "byte 4012 of array"),
    ("row_sum", "j < N;", "j < N - 1;", WRONG, ""),
    ("bias_gelu", "    if (j >= N) return;\n", "", CRASH, "outside of its memory"),
    ("transpose", "out[k * M + i]", "out[k * N + i]", CRASH, "outside of its memory"),
    ("transpose", "    __syncthreads();\n    int i",
     "    if (threadIdx.y < 5) __syncthreads();\n    int i", WRONG, "not reached by all threads"),
    ("histogram",
     "    for (int b = threadIdx.x; b < B; b += blockDim.x) counts[b] = 0;\n", "", WRONG, ""),
]  # fmt: skip


@pytest.fixture(scope="module")
def backend() -> Iterator[CudaBackend]:
    need_nvcc()
    backend = CudaBackend("sm_80")
    yield backend
    backend.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_has_no_fault(backend: CudaBackend, name: str) -> None:
    problem = gpu_problem(name, "cuda")
    assert backend.verify(problem, gpu_kernel(problem.seed_source, "cuda"), seed=1) is None


@pytest.mark.slow
@pytest.mark.parametrize(("name", "old", "new", "kind", "words"), FAULTS)
def test_a_planted_fault_is_found(
    backend: CudaBackend, name: str, old: str, new: str, kind: FailureKind, words: str
) -> None:
    problem = gpu_problem(name, "cuda")
    kernel = gpu_kernel(edited(problem.seed_source, old, new), "cuda")
    failure = backend.verify(problem, kernel, seed=1)
    assert failure is not None
    assert failure.kind is kind
    assert words in failure.message
    assert ("line " in failure.message) == bool(words)


def test_what_does_not_compile_is_told_as_such(backend: CudaBackend) -> None:
    problem = gpu_problem("vector_add", "cuda")
    failure = backend.verify(problem, gpu_kernel("nonsense", "cuda"), seed=1)
    assert failure is not None
    assert failure.kind is FailureKind.COMPILE_ERROR


def test_what_is_not_emulated_is_named(backend: CudaBackend) -> None:
    problem = gpu_problem("vector_add", "cuda")
    text = edited(problem.seed_source, "out[i] =", 'asm volatile("brkpt;"); out[i] =')
    with pytest.raises(NotEmulated, match="brkpt"):
        backend.verify(problem, gpu_kernel(text, "cuda"), seed=1)


def test_a_kernel_without_end_is_ended(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_emulation, "_STEPS", 10_000)
    problem = gpu_problem("vector_add", "cuda")
    text = edited(problem.seed_source, "out[i] =", "while (out[i] != 0.5f) __syncwarp(); out[i] =")
    with pytest.raises(NotEmulated, match="steps"):
        backend.verify(problem, gpu_kernel(text, "cuda"), seed=1)


def test_a_problem_without_a_small_case_is_refused(backend: CudaBackend) -> None:
    problem = gpu_problem("axpy", "cuda")
    large = problem.model_copy(update={"cases": problem.cases[:1]})
    with pytest.raises(SetupError, match="add a small one"):
        backend.verify(large, gpu_kernel(problem.seed_source, "cuda"), seed=1)


def test_code_that_cannot_be_launched_is_not_emulated(backend: CudaBackend) -> None:
    problem = gpu_problem("vector_add", "cuda").model_copy(update={"language": "python"})
    with pytest.raises(NotEmulated, match="without a launch"):
        backend.verify(problem, gpu_kernel("import torch\n", "python"), seed=1)
