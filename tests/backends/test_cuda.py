"""CUDA C++ up to the launch: what the backend reports is what NVIDIA's own tools say."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from kernelcast import dtypes
from kernelcast.backends import cuda
from kernelcast.backends._gpu import choose_target
from kernelcast.backends._launch import read_launch
from kernelcast.backends._toolchain import find_cuda_tool
from kernelcast.backends.cuda import CudaBackend, extract_cuda
from kernelcast.devices import find_device
from kernelcast.errors import NoDevice, SetupError
from kernelcast.testing import BackendContract
from kernelcast.types import Evidence, FailureKind, Problem
from tests.backends.dtype_problems import seed_kernel, sum_problem
from tests.backends.gpu_problems import (
    CUDA_KERNELS,
    CUDA_TARGETS,
    by_turns,
    edited,
    gpu_here,
    gpu_kernel,
    gpu_problem,
    need_disassembler,
    need_gpu,
    need_nvcc,
    source_of,
    usage_line,
)

LAUNCHED = [name for name in CUDA_KERNELS if name != "scale"]


@pytest.fixture(scope="module")
def backends() -> Iterator[dict[str, CudaBackend]]:
    need_nvcc()
    with ExitStack() as stack:
        made = {target: CudaBackend(target, emulates=False) for target in CUDA_TARGETS}
        for backend in made.values():
            stack.callback(backend.close)
        yield made


@cache
def _says(tool: str, *arguments: str | Path) -> str:
    path = find_cuda_tool(tool)
    assert path is not None
    command = [path, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=900).stdout


def inspected(backend: CudaBackend, name: str, source: str | None = None) -> Evidence:
    problem = gpu_problem(name, "cuda")
    return backend.inspect(problem, gpu_kernel(source or problem.seed_source, "cuda"))


def cubin_of(backend: CudaBackend, name: str) -> Path:
    problem = gpu_problem(name, "cuda")
    program = backend._build(problem, problem.cases[0], problem.seed_source).program
    assert program is not None
    return program.cubin


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target"), by_turns(CUDA_TARGETS))
def test_evidence_is_what_the_tools_say(
    backends: dict[str, CudaBackend], name: str, target: str
) -> None:
    need_disassembler()
    _check_against_tools(backends[target], name)


def test_evidence_of_one_kernel_is_what_the_tools_say(backends: dict[str, CudaBackend]) -> None:
    need_disassembler()
    _check_against_tools(backends["sm_90"], "row_sum")


def _check_against_tools(backend: CudaBackend, name: str) -> None:
    evidence = inspected(backend, name)
    assert evidence.failure is None
    assert evidence.target == backend.target
    cubin = cubin_of(backend, name)
    usage = usage_line(_says("cuobjdump", "-res-usage", cubin), "kernel")
    assert evidence.registers == usage["REG"]
    assert evidence.stack_bytes == usage["STACK"] + usage["LOCAL"]
    launch = read_launch(source_of(name, "cuda"))
    assert launch is not None
    dynamic = launch.shared_bytes(gpu_problem(name, "cuda").cases[0].dimensions)
    # From sm_90 on, a kilobyte for the system is part of the figure where there is one at all.
    reserved = 1024 if usage["SHARED"] and backend.target != "sm_80" else 0
    assert evidence.shared_bytes == usage["SHARED"] - reserved + dynamic

    listing = _says("cuobjdump", "-sass", cubin)
    opcodes = re.findall(r"/\*[0-9a-f]{4,}\*/ +(?:@!?U?P\w+ +)?([A-Z]\w*)", listing)
    real = [opcode for opcode in opcodes if opcode != "NOP"]
    mix = dict(evidence.instructions)
    total = mix.pop("total")
    assert total == len(real) == sum(mix.values())
    assert evidence.code_bytes == 16 * total
    assert mix["load_global"] == real.count("LDG")
    assert mix["store_shared"] == real.count("STS") + real.count("STSM")
    assert mix["mma"] == sum("MMA" in opcode for opcode in real)
    assert mix["other"] <= 0.02 * total
    assert (evidence.spill_bytes or 0) >= 4 * mix["store_local"]
    assert bool(evidence.spill_bytes) == (name == "spill")
    assert evidence.occupancy is not None
    assert 0.0 < evidence.occupancy <= 1.0


def test_a_tensor_core_is_seen(backends: dict[str, CudaBackend]) -> None:
    need_disassembler()
    mix = inspected(backends["sm_90"], "half_matmul").instructions
    assert mix["mma"] > 0
    assert mix["convert"] > 0


def test_launch_bounds_stand_in_for_a_launch(backends: dict[str, CudaBackend]) -> None:
    source = source_of("scale", "cuda")
    problem = Problem.unstated("scale", "cuda", source)
    evidence = backends["sm_80"].inspect(problem, gpu_kernel(source, "cuda"))
    assert evidence.failure is None
    assert evidence.block_threads == 192
    assert evidence.occupancy == pytest.approx(60 / 64)  # 10 blocks of 6 warps


def test_what_is_no_kernel_of_the_problem_is_a_compile_error(
    backends: dict[str, CudaBackend],
) -> None:
    source = source_of("vector_add", "cuda")
    for old, new, message in (
        ("#pragma kernelcast", "// ", "how it is launched"),
        ("block(256)", "block(2048)", "2048 threads"),
        (" kernel(", " another(", "no __global__ function 'kernel'"),
        ("const float* y, ", "", "it is handed 3 pointers"),
        ("long long N", "double4 N", "it is handed 3 pointers"),
        ("y[i];", "y[i]", "expected a"),
    ):
        changed = edited(source, old, new).replace("+ y[i]", "" if "float* y" in old else "+ y[i]")
        changed = changed.replace("i < N", "i < 5") if "double4" in new else changed
        failure = inspected(backends["sm_90"], "vector_add", changed).failure
        assert failure is not None
        assert failure.kind is FailureKind.COMPILE_ERROR
        assert message in failure.message


def test_a_function_of_cpp_linkage_is_found(backends: dict[str, CudaBackend]) -> None:
    source = edited(source_of("vector_add", "cuda"), 'extern "C" ', "")
    assert inspected(backends["sm_90"], "vector_add", source).failure is None


def test_the_compiler_is_confined(backends: dict[str, CudaBackend], tmp_path: Path) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("#error the secret was read\n")
    source = f'#include "{secret}"\n' + source_of("vector_add", "cuda")
    failure = inspected(backends["sm_90"], "vector_add", source).failure
    assert failure is not None
    assert ("the secret was read" in failure.message) == (backends["sm_90"].level < "S2")


def test_a_launch_reads_like_c() -> None:
    launch = read_launch(
        "#define TILE 32  // wide\n#define HALF (TILE / 2)\n#define NAME kernel\n"
        "  # pragma kernelcast  grid((N + TILE - 1) / TILE, M) block(HALF, 2) shared(4*(TILE+1))\n"
    )
    assert launch is not None
    assert launch.grid_extent({"N": 65, "M": 7}) == (3, 7, 1)
    assert launch.block_extent({}) == (16, 2, 1)
    assert launch.shared_bytes({}) == 132
    assert read_launch("#pragma unroll\n") is None
    assert read_launch("#pragma kernelcast grid(1)\n") is None


def test_target_and_device_follow_from_each_other() -> None:
    a10, h100 = find_device("A10"), find_device("H100-SXM5")
    assert choose_target(None, None) == ("sm_90", h100)
    assert choose_target("sm_90a", None) == ("sm_90a", h100)
    assert choose_target(None, "A10") == ("sm_86", a10)
    assert choose_target("sm_80", a10) == ("sm_80", a10)
    with pytest.raises(SetupError, match="no known device"):
        choose_target("sm_1", None)


# ------------------------------------------------------------------------- a PyTorch extension

MODULE = '''
import torch
from torch.utils.cpp_extension import load_inline

source = """
#include <torch/extension.h>
#include <cuda_runtime.h>
#define BLOCK 256
struct Pair { float a, b; };
__device__ float twice(float x) { return 2.0f * x; }
__global__ void __launch_bounds__(BLOCK) double_it(const float* x, float* y, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) { Pair p = {twice(x[i]), 0.0f}; y[i] = p.a + p.b; }
}
torch::Tensor double_cuda(torch::Tensor x) {
    auto y = torch::empty_like(x);
    double_it<<<(x.numel() + BLOCK - 1) / BLOCK, BLOCK>>>(
        x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}
"""
header = "torch::Tensor double_cuda(torch::Tensor x);"
double = load_inline(
    name="double", cpp_sources=header, cuda_sources=[source.strip()], functions=["double_cuda"]
)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return double.double_cuda(x)
'''


def test_device_code_is_taken_out_of_a_module(backends: dict[str, CudaBackend]) -> None:
    text = extract_cuda(MODULE)
    assert text is not None
    assert "__global__" in text
    assert "struct Pair" in text
    assert "torch" not in text
    problem = Problem.unstated("double", "python", MODULE)
    evidence = backends["sm_90"].inspect(problem, gpu_kernel(MODULE, "python"))
    assert evidence.failure is None
    assert evidence.registers
    assert evidence.block_threads == 256
    assert evidence.launches == 1
    another = "__global__ void zero(float* y) { y[0] = 0.0f; }\nstruct Pair"
    twofold = gpu_kernel(MODULE.replace("struct Pair", another), "python")
    assert backends["sm_90"].inspect(problem, twofold).launches == 2


def test_a_module_without_cuda_is_no_failure(backends: dict[str, CudaBackend]) -> None:
    for source in ("import torch\n", "not Python at all (", MODULE.replace("cuda_sources", "x")):
        assert extract_cuda(source) is None
    problem = Problem.unstated("plain", "python", "import torch\n")
    evidence = backends["sm_90"].inspect(problem, gpu_kernel("import torch\n", "python"))
    assert evidence.failure is None
    assert evidence.registers is None


def test_cuda_sources_are_found_however_they_are_handed_over() -> None:
    assert (
        extract_cuda("load_inline('n', '', '__global__ void f() {}')") == "__global__ void f() {}"
    )
    split = "a = '__global__ void '\nb = a + 'f() {}'\nx.load_inline(cuda_sources=b)"
    assert extract_cuda(split) == "__global__ void f() {}"
    assert extract_cuda("load_inline(cuda_sources=read_it())") is None


def test_a_text_that_doubles_itself_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_MOST_JOINED_CHARACTERS", 1 << 16)
    for joined in ("a + a", "[a, a]", "(a, a).strip()"):
        module = "a = 'int x;'\n" + f"a = {joined}\n" * 40 + "load_inline(cuda_sources=a)"
        text = extract_cuda(module)
        assert text is None or len(text) <= 1 << 16
    deep = "a = " + "+".join(["'x'"] * 3_000) + "\nload_inline(cuda_sources=a)"
    assert extract_cuda(deep) is None


def test_text_that_is_never_closed_is_one_chunk() -> None:
    for text in ('"' + '\\"' * 20_000, "/* " * 20_000, "'\\" * 20_001, "{ #a\n" * 20_000):
        assert "".join(cuda._chunks(text)) == text
        pieces = [piece[0] for piece in cuda._C_PIECE.finditer(text)]
        assert len(pieces) == 1 or text.startswith("{")
    assert list(cuda._chunks("x\n#a\n#b\n;\n#c\nint y;")) == [
        "x\n#a\n#b\n;",
        "\n#c",
        "\nint y;",
        "",
    ]


# --------------------------------------------------------------------------------- the launch


class TestCudaBackend(BackendContract):
    def make(self) -> CudaBackend:
        need_nvcc()
        here = gpu_here()
        return CudaBackend(*here) if here else CudaBackend("sm_90")

    def problem(self) -> Problem:
        return gpu_problem("axpy", "cuda")

    def wrong_source(self) -> str:
        return edited(source_of("axpy", "cuda"), "2.5f", "2.25f")

    def launches(self) -> bool:
        return gpu_here() is not None


def test_no_device_says_how_to_get_one(backends: dict[str, CudaBackend]) -> None:
    if gpu_here():
        pytest.skip("there is a GPU here")
    problem = gpu_problem("vector_add", "cuda")
    with pytest.raises(NoDevice, match="nvidia-smi"):
        backends["sm_100"].measure(problem, gpu_kernel(problem.seed_source, "cuda"), seed=1)
    assert backends["sm_100"].device == find_device("B200-SXM")


@pytest.mark.gpu
@pytest.mark.parametrize("name", LAUNCHED)
def test_every_kernel_is_right_and_ties_with_itself(name: str) -> None:
    need_nvcc()
    backend = CudaBackend(*need_gpu())
    problem = gpu_problem(name, "cuda")
    measurement = backend.measure(problem, gpu_kernel(problem.seed_source, "cuda"), seed=1)
    backend.close()
    assert measurement.timing is not None, measurement.failure
    assert abs(measurement.timing.log2_speedup) < 0.3


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_kernels_of_narrow_arrays_compile(
    backends: dict[str, CudaBackend], tmp_path: Path, name: dtypes.Name
) -> None:
    problem = sum_problem(tmp_path, name, "cuda")
    evidence = backends["sm_90"].inspect(problem, seed_kernel(problem))
    assert evidence.failure is None
    assert evidence.registers
