"""Compiled CUDA kernels judged without a GPU: right ones, and ones with a planted fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from kernelcast.backends import _emulation
from kernelcast.backends.cuda import CudaBackend
from kernelcast.emulator.ptx import NotEmulated
from kernelcast.errors import SetupError
from kernelcast.problems import bundled_problems, load_problem
from kernelcast.types import FailureKind, Problem
from tests.backends.gpu_problems import edited, gpu_kernel, gpu_problem, need_nvcc
from tests.hooks import gate_runs

RIGHT = ("half_matmul", "histogram", "layernorm", "matmul", "softmax", "spill", "transpose")
CRASH, WRONG = FailureKind.CRASH, FailureKind.WRONG_RESULT
# kernel, what is replaced, by what, and how it is found
FAULTS = [
    ("matmul", "        __syncthreads();\n#pragma", "#pragma", WRONG, "two warps use byte"),
    ("softmax", "    __syncthreads();\n    if (threadIdx.x % 32", "    if (threadIdx.x % 32", WRONG,
     "its warps race"),
    ("vector_add", "i < N", "i <= N", CRASH, "4 bytes at byte 4012 of y, which has 4012"),
    ("row_sum", "j < N;", "j < N - 1;", WRONG, ""),
    ("bias_gelu", "    if (j >= N) return;\n", "", CRASH, "outside of its memory"),
    ("transpose", "out[k * M + i]", "out[k * N + i]", CRASH, "outside of its memory"),
    ("transpose", "    __syncthreads();\n    int i",
     "    if (threadIdx.y < 5) __syncthreads();\n    int i", WRONG, "not reached by all threads"),
    ("histogram", "    for (int b = threadIdx.x; b < B; b += blockDim.x) counts[b] = 0;\n", "",
     WRONG, "that nothing has written"),
    ("histogram", "counts[b] = 0;\n    __syncthreads();", "counts[b] = 0;", WRONG,
     "its warps race"),
    ("softmax", "partial[8];", "partial[7];", CRASH, "byte 28 of shared memory, which has 28"),
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
@pytest.mark.parametrize("name", gate_runs(2, bundled_problems("cpp")))
def test_the_seed_of_a_bundled_problem_has_no_fault(backend: CudaBackend, name: str) -> None:
    problem = load_problem(name, language="cuda")
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


@pytest.mark.slow
def test_registers_that_nothing_has_written_are_told_without_a_line(backend: CudaBackend) -> None:
    problem = gpu_problem("matmul", "cuda")
    source = edited(problem.seed_source, "float sums[4][4] = {};", "float sums[4][4];")
    failure = backend.verify(problem, gpu_kernel(source, "cuda"), seed=1)
    assert failure is not None
    assert failure.message.startswith(f"{_emulation.WORDS['unwritten']}: case ragged: c[0, 0] is")


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


# -------------------------------------------------------------------------------------- evidence


@pytest.mark.slow
def test_evidence_has_an_estimate_and_nothing_against_a_right_kernel(backend: CudaBackend) -> None:
    problem = gpu_problem("row_sum", "cuda")
    evidence = backend.inspect(problem, gpu_kernel(problem.seed_source, "cuda"))
    assert (evidence.failure, evidence.unchecked, evidence.not_emulated) == (None, "", "")
    assert [estimate.case for estimate in evidence.emulated] == ["main"]
    assert evidence.emulation_cpu_s > evidence.emulated[0].cpu_s > 0.0
    assert evidence.registers
    again = backend.inspect(problem, gpu_kernel(problem.seed_source, "cuda"))
    assert again == evidence


@pytest.mark.slow
def test_evidence_refutes_a_wrong_kernel_before_any_device(backend: CudaBackend) -> None:
    problem = gpu_problem("row_sum", "cuda")
    source = edited(problem.seed_source, "j < N;", "j < N - 1;")
    evidence = backend.inspect(problem, gpu_kernel(source, "cuda"))
    assert evidence.failure is not None
    assert evidence.failure.kind is FailureKind.WRONG_RESULT
    assert evidence.verdict == "is wrong when it is emulated"
    assert evidence.emulated


@pytest.mark.slow
def test_emulation_that_finds_the_seed_wrong_judges_no_kernel(backend: CudaBackend) -> None:
    problem = gpu_problem("row_sum", "cuda")
    wrong = edited(problem.seed_source, "j < N;", "j < N - 1;")
    doubtful = problem.model_copy(update={"seed_source": wrong})
    evidence = backend.inspect(doubtful, gpu_kernel(wrong, "cuda"))
    assert evidence.failure is None
    assert evidence.unchecked.startswith("emulation finds the seed wrong too")
    assert evidence.emulated


def test_evidence_says_what_is_not_emulated(backend: CudaBackend) -> None:
    problem = gpu_problem("vector_add", "cuda")
    source = edited(problem.seed_source, "out[i] =", 'asm volatile("brkpt;"); out[i] =')
    evidence = backend.inspect(problem, gpu_kernel(source, "cuda"))
    assert evidence.failure is None
    assert "brkpt" in evidence.unchecked
    assert "brkpt" in evidence.not_emulated
    assert evidence.estimated_log2_s is None


def test_a_backend_need_not_emulate() -> None:
    need_nvcc()
    with closing(CudaBackend("sm_80", emulates=False)) as backend:
        problem = gpu_problem("vector_add", "cuda")
        evidence = backend.inspect(problem, gpu_kernel(problem.seed_source, "cuda"))
    assert evidence.registers
    assert not evidence.emulated
    assert evidence.emulation_cpu_s == 0.0


# ------------------------------------------------------------------------------- estimated times


@pytest.mark.slow
def test_what_an_estimate_says(backend: CudaBackend) -> None:
    problem = gpu_problem("transpose", "cuda")
    (estimate,) = backend.emulate(problem, gpu_kernel(problem.seed_source, "cuda"))
    assert estimate.case == "main"
    least = 2 * 4 * 512 * 1024 / backend.device.bandwidth_bytes_s
    assert least <= estimate.runtime_s < 10 * least
    assert estimate.bank_conflicts == pytest.approx(1.0)
    assert estimate.sectors_per_request == pytest.approx(4.0)
    assert estimate.used_bytes == pytest.approx(1.0)
    assert estimate.occupancy == 1.0
    assert estimate.lane_efficiency == pytest.approx(1.0)
    assert sum(share for _, share in estimate.lines) <= 1.0
    assert estimate.cpu_s > 0.0


@pytest.mark.slow
def test_bank_conflicts_are_counted_and_cost(backend: CudaBackend) -> None:
    problem = gpu_problem("transpose", "cuda")
    padded = problem.seed_source
    conflicting = edited(padded, "[TILE + 1]", "[TILE]")
    (good,), (bad,) = (
        backend.emulate(problem, gpu_kernel(source, "cuda")) for source in (padded, conflicting)
    )
    assert bad.bank_conflicts is not None
    assert bad.bank_conflicts > 15.0
    assert bad.runtime_s > 1.5 * good.runtime_s
    assert bad.bound_by == "memory pipe"


@pytest.mark.slow
def test_a_tuned_kernel_is_counted_with_arguments_of_its_own(backend: CudaBackend) -> None:
    source = """#pragma kernelcast grid(100) block(128)
__constant__ int offsets[2];
extern "C" __global__ void scale(float factor, const float* x, float* y, int n) {
    int i = blockIdx.x * 128 + threadIdx.x + offsets[1];
    if (i < n) y[i] = factor * x[i];
}"""
    problem = Problem.unstated("scale", "cuda", source).model_copy(update={"entry": "scale"})
    array = _emulation.Array(4 * 12_800, bytes(64))
    arguments: list[_emulation.Array | int] = [0x40000000, array, array, 12_800]
    counted = backend.count(problem, None, source, arguments)
    assert counted.exact
    assert counted.array_bytes == 8 * 12_800
    counts = counted.blocks[0][1]
    assert counts.traffic("load_global").sectors == 4 * 4
    beyond = backend.count(
        problem, None, source, arguments, {"offsets": b"\0" * 4 + b"\xff\xff\0\0"}
    )
    assert beyond.blocks[0][1].traffic("load_global").sectors == 0


def test_without_known_pipes_there_is_no_estimate(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "target", "sm_999")
    problem = gpu_problem("vector_add", "cuda")
    with pytest.raises(NotEmulated, match="the pipes of sm_999 are not known"):
        backend.emulate(problem, gpu_kernel(problem.seed_source, "cuda"))
