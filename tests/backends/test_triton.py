"""Triton up to the launch: compiled for NVIDIA and AMD, checked against the tools, interpreted."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kernelcast import dtypes
from kernelcast.backends._toolchain import ToolRun, find_cuda_tool
from kernelcast.backends.triton import TritonBackend, _read_module
from kernelcast.errors import NoDevice, SetupError
from kernelcast.testing import BackendContract
from kernelcast.types import Case, Evidence, Failure, FailureKind, Problem
from tests.backends.dtype_problems import seed_kernel, sum_problem
from tests.backends.gpu_problems import (
    CUDA_TARGETS,
    TRITON_KERNELS,
    by_turns,
    edited,
    gpu_here,
    gpu_kernel,
    gpu_problem,
    need_gpu,
    need_triton,
    source_of,
    usage_line,
)
from tests.hooks import gate_runs

AMD_TARGETS = ("gfx90a", "gfx942")


@pytest.fixture(scope="module")
def backends() -> Iterator[dict[str, TritonBackend]]:
    need_triton()
    with ExitStack() as stack:
        targets = (*CUDA_TARGETS, *AMD_TARGETS)
        made = {target: TritonBackend(target, emulates=False) for target in targets}
        for backend in made.values():
            stack.callback(backend.close)
        yield made


def inspected(backend: TritonBackend, name: str, source: str | None = None) -> Evidence:
    problem = gpu_problem(name, "triton")
    return backend.inspect(problem, gpu_kernel(source or problem.seed_source, "triton"))


def built_in(backend: TritonBackend, name: str) -> Path:
    """The folder of a kernel's build for its timed case."""
    problem = gpu_problem(name, "triton")
    backend._build(problem, problem.cases[0], problem.seed_source)
    (_, folder) = next(reversed(backend._builds.values()))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target"), by_turns(CUDA_TARGETS))
def test_evidence_is_what_the_tools_say(
    backends: dict[str, TritonBackend], name: str, target: str
) -> None:
    _check_against_tools(backends[target], name)


def test_evidence_of_one_kernel_is_what_the_tools_say(backends: dict[str, TritonBackend]) -> None:
    _check_against_tools(backends["sm_90"], "softmax")


def _check_against_tools(backend: TritonBackend, name: str) -> None:
    evidence = inspected(backend, name)
    assert evidence.failure is None
    assert evidence.target == backend.target
    folder = built_in(backend, name)
    tool = find_cuda_tool("cuobjdump")
    assert tool is not None

    def says(option: str, tool: Path = tool) -> str:
        command: list[str | Path] = [tool, option, folder / "kernel.cubin"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
        return done.stdout

    usage = usage_line(says("-res-usage"), "kernel")
    assert evidence.registers == usage["REG"]
    assert evidence.stack_bytes == usage["STACK"] + usage["LOCAL"]
    opcodes = re.findall(r"/\*[0-9a-f]{4,}\*/ +(?:@!?U?P\w+ +)?([A-Z]\w*)", says("-sass"))
    real = [opcode for opcode in opcodes if opcode != "NOP"]
    mix = dict(evidence.instructions)
    total = mix.pop("total")
    assert total == len(real) == sum(mix.values())
    assert mix["load_global"] == real.count("LDG")
    assert mix["mma"] == sum("MMA" in opcode for opcode in real)
    assert mix["other"] <= 0.02 * total
    assert bool(evidence.spill_bytes) == bool(mix["store_local"])
    if name == "spill":
        assert evidence.spill_bytes
    (threads,) = re.findall(r"^\.reqntid (\d+)", (folder / "kernel.ptx").read_text(), re.M)
    assert evidence.block_threads == int(threads)
    assert evidence.occupancy is not None
    assert 0.0 < evidence.occupancy <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target"), by_turns(AMD_TARGETS))
def test_evidence_on_amd_is_what_the_assembly_says(
    backends: dict[str, TritonBackend], name: str, target: str
) -> None:
    _check_against_assembly(backends[target], name)


def test_evidence_of_one_kernel_on_amd(backends: dict[str, TritonBackend]) -> None:
    _check_against_assembly(backends["gfx942"], "half_matmul")


def _check_against_assembly(backend: TritonBackend, name: str) -> None:
    evidence = inspected(backend, name)
    assert evidence.failure is None
    assembly = (built_in(backend, name) / "kernel.amdgcn").read_text()
    (registers,) = re.findall(r"\.amdhsa_next_free_vgpr (\d+)", assembly)
    (private,) = re.findall(r"\.amdhsa_private_segment_fixed_size (\d+)", assembly)
    assert evidence.registers == int(registers)
    assert evidence.stack_bytes == int(private)
    mix = evidence.instructions
    assert mix["total"] == sum(mix.values()) - mix["total"]
    assert mix["mma"] == len(re.findall(r"^\s+v_mfma_", assembly, re.M))
    assert mix["load_global"] + mix["store_global"] == len(
        re.findall(r"^\s+(?:global|buffer)_(?:load|store)_", assembly, re.M)
    )
    assert bool(mix["mma"]) == ("matmul" in name)
    assert evidence.occupancy
    assert evidence.block_threads
    assert evidence.block_threads % 64 == 0


def test_a_case_is_compiled_as_triton_would(backends: dict[str, TritonBackend]) -> None:
    """Dimensions that 16 divides let it load four elements at once; a ragged case is another."""
    problem = gpu_problem("vector_add", "triton")
    kernel = gpu_kernel(problem.seed_source, "triton")
    ragged = (Case(name="odd", dimensions={"N": 1_000_003}),)
    one = backends["sm_90"].inspect(problem, kernel)
    other = backends["sm_90"].inspect(problem.model_copy(update={"cases": ragged}), kernel)
    assert 4 * one.instructions["load_global"] == other.instructions["load_global"]


def test_what_is_no_kernel_of_the_problem_is_a_compile_error(
    backends: dict[str, TritonBackend],
) -> None:
    source = source_of("vector_add", "triton")
    for old, new, message in (
        ("LAUNCH =", "OTHER =", "how it is launched"),
        ('"grid"', '"gird"', "no literal with a grid"),
        ("BLOCK - 1)", "BLOKC - 1)", "unknown name 'BLOKC'"),
        ('"num_warps"', '"warps"', "unknown parts: 'warps'"),
        ("def kernel", "def another", "no @triton.jit function 'kernel'"),
        ("(x, y, out, N,", "(x, y, out, N, M,", "it is handed 3 pointers, 1 integers"),
        ("i < N", "i < n", "n is not defined"),
        ("def kernel(", "def kernel(:", "it is no Python"),
    ):
        failure = inspected(backends["sm_80"], "vector_add", edited(source, old, new)).failure
        assert failure is not None
        assert failure.kind is FailureKind.COMPILE_ERROR
        assert message in failure.message


@pytest.mark.parametrize(
    "launch",
    [
        '{"grid": ["N * N * N * N * N * N * N * N"], "constants": {"BLOCK": 1024}}',
        '{"grid": ["\'a\' * 1000000000"], "constants": {"BLOCK": 1024}}',
        '{"grid": ["\'%1999999999d\' % 1"], "constants": {"BLOCK": 1024}}',
        '{"grid": ["N / (N - N)"], "constants": {"BLOCK": 1024}}',
        '{"grid": ["BLOCK"], "constants": {"BLOCK": 0x' + "f" * 9_000 + "}}",
        '{"grid": [0x' + "f" * 9_000 + '], "constants": {"BLOCK": 1024}}',
        '{"grid": ["N"], "constants": {"BLOCK": 1024}, "num_warps": 1e999}',
        '{"grid": ["N"], "constants": {"BLOCK": 1024}, "num_warps": 1e300}',
        '{"grid": ["N"], "constants": {"BLOCK": 1024, "\\ud800": 1}}',
        '{"grid": ["N"], "constants": {"BLOCK": 1024}, "\\ud800": 1}',
        '{"grid": ["N"], "constants": {"BLOCK": 1024}, 0x' + "f" * 9_000 + ": 1}",
        '{"grid": ["N"], "constants": {"BLOCK": "' + "a" * 9_000 + '"}}',
        '{"grid": ["N"], "constants": {' + ", ".join(f'"A{n}": 1' for n in range(999)) + "}}",
        "{" + "-" * 9_000 + "1: 1}",
        "[" * 150 + "]" * 150,
    ],
)
def test_a_launch_that_cannot_be_worked_out_is_a_failure_in_few_words(launch: str) -> None:
    problem = gpu_problem("vector_add", "triton")
    source = re.sub(r"LAUNCH = .*", lambda _: f"LAUNCH = {launch}", problem.seed_source)
    failure = _read_module(source, problem)
    assert isinstance(failure, Failure)
    assert len(failure.message) < 5_000


def test_a_module_that_is_too_long_or_too_deep_is_a_failure() -> None:
    problem = gpu_problem("vector_add", "triton")
    for more in ("x = " + "-" * 5_000 + "1", "x = y" + ".y" * 3_000, "#" * (1 << 20), "(" * 9_000):
        failure = _read_module(f"{problem.seed_source}\n{more}\n", problem)
        assert isinstance(failure, Failure)
        assert len(failure.message) < 1_000


def test_a_module_holds_kernels_and_nothing_else(backends: dict[str, TritonBackend]) -> None:
    source = source_of("vector_add", "triton")
    for old, new in (
        ('"BLOCK": 1024', '"BLOCK": print()'),
        ("import triton\n", "import triton\nraise SystemExit(0)\n"),
        ("import triton\n", "import os\nimport triton\n"),
    ):
        failure = inspected(backends["sm_80"], "vector_add", edited(source, old, new)).failure
        assert failure is not None
        assert failure.kind is FailureKind.CHEATING


def test_importing_a_kernel_is_confined(backends: dict[str, TritonBackend], tmp_path: Path) -> None:
    backend = backends["sm_80"]
    target = tmp_path / "written"
    source = f"open({str(target)!r}, 'w').close()\n" + source_of("vector_add", "triton")
    failure = inspected(backend, "vector_add", source).failure
    if backend.level >= "S2":
        assert failure is not None
        assert not target.exists()


# ------------------------------------------------------------------------------ the interpreter


@pytest.mark.slow
@pytest.mark.parametrize("name", gate_runs(3, TRITON_KERNELS))
def test_kernels_are_right_when_interpreted_and_when_emulated(
    backends: dict[str, TritonBackend], name: str
) -> None:
    problem = gpu_problem(name, "triton")
    kernel = gpu_kernel(problem.seed_source, "triton")
    assert backends["sm_80"].verify(problem, kernel, seed=1) is None


def test_the_interpreter_finds_what_is_wrong(backends: dict[str, TritonBackend]) -> None:
    backend, problem = backends["sm_90"], gpu_problem("axpy", "triton")

    def verdict(old: str, new: str) -> FailureKind | None:
        kernel = gpu_kernel(edited(problem.seed_source, old, new), "triton")
        failure = backend.verify(problem, kernel, seed=1)
        return failure.kind if failure else None

    assert verdict("2.5 *", "2.5 * 1 *") is None
    assert verdict("2.5 *", "2.25 *") is FailureKind.WRONG_RESULT
    assert verdict("static_range(4)", "static_range(1)") is FailureKind.WRONG_RESULT
    assert verdict("mask=keep)\n", "mask=i < N + 3)\n") is FailureKind.CRASH
    assert verdict("tl.load(x + i", "tl.lod(x + i") is FailureKind.CRASH
    assert verdict("LAUNCH", "OTHER") is FailureKind.COMPILE_ERROR


@pytest.mark.slow
def test_a_failure_of_the_compiled_code_comes_first_and_names_a_line(
    backends: dict[str, TritonBackend],
) -> None:
    problem = gpu_problem("transpose", "triton")
    source = edited(problem.seed_source, "j[:, None] * M + i", "j[:, None] * N + i")
    failure = backends["sm_80"].verify(problem, gpu_kernel(source, "triton"), seed=1)
    assert failure is not None
    assert failure.message.startswith("it reaches outside of its memory: line 21: 4 bytes at byte ")


def test_an_interpreter_that_dies_without_a_word_is_told(
    backends: dict[str, TritonBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, problem = backends["sm_80"], gpu_problem("axpy", "triton")
    monkeypatch.setattr(backend, "_work", lambda *_, **__: ToolRun(-11, "", 0.0))
    monkeypatch.setattr(backend, "_is_nvidia", False)
    failure = backend.verify(problem, gpu_kernel(problem.seed_source, "triton"), seed=1)
    assert failure is not None
    assert failure.message == "the interpreter ended with status -11"


def test_a_problem_without_a_small_case_cannot_be_interpreted(
    backends: dict[str, TritonBackend],
) -> None:
    problem = gpu_problem("axpy", "triton")
    large = problem.model_copy(update={"cases": problem.cases[:1]})
    with pytest.raises(SetupError, match="add a small one"):
        backends["sm_90"].verify(large, gpu_kernel(problem.seed_source, "triton"), seed=1)


# ----------------------------------------------------------------------------------- the launch


@pytest.mark.measures
class TestTritonBackend(BackendContract):
    def make(self) -> TritonBackend:
        need_triton()
        here = gpu_here()
        return TritonBackend(*here) if here else TritonBackend("sm_90")

    def problem(self) -> Problem:
        return gpu_problem("axpy", "triton")

    def wrong_source(self) -> str:
        return edited(source_of("axpy", "triton"), "2.5 *", "2.25 *")

    def launches(self) -> bool:
        return gpu_here() is not None


def test_amd_is_for_evidence_only(backends: dict[str, TritonBackend]) -> None:
    problem = gpu_problem("softmax", "triton")
    with pytest.raises(NoDevice, match="not written yet"):
        backends["gfx942"].measure(problem, gpu_kernel(problem.seed_source, "triton"), seed=1)


@pytest.mark.gpu
@pytest.mark.parametrize("name", TRITON_KERNELS)
def test_every_kernel_is_right_and_ties_with_itself(name: str) -> None:
    need_triton()
    backend = TritonBackend(*need_gpu())
    problem = gpu_problem(name, "triton")
    measurement = backend.measure(problem, gpu_kernel(problem.seed_source, "triton"), seed=1)
    backend.close()
    assert measurement.timing is not None, measurement.failure
    assert abs(measurement.timing.log2_speedup) < 0.3


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_kernels_of_narrow_arrays_compile(
    backends: dict[str, TritonBackend], tmp_path: Path, name: dtypes.Name
) -> None:
    problem = sum_problem(tmp_path, name, "triton")
    evidence = backends["sm_90"].inspect(problem, seed_kernel(problem))
    assert evidence.failure is None
    assert evidence.registers


def test_a_type_that_the_target_lacks_is_refused(
    backends: dict[str, TritonBackend], tmp_path: Path
) -> None:
    problem = sum_problem(tmp_path, "float8_e4m3fn", "triton")
    with pytest.raises(SetupError, match=r"which Triton has from sm_89 on, not on sm_80: name"):
        backends["sm_80"].inspect(problem, seed_kernel(problem))


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2"])
def test_the_interpreter_rounds_to_narrow_types(
    backends: dict[str, TritonBackend], tmp_path: Path, name: dtypes.Name
) -> None:
    problem = sum_problem(tmp_path, name, "triton", size=600)
    backend = backends["gfx942"]  # whose code is not emulated
    assert backend.verify(problem, seed_kernel(problem), seed=1) is None
    off = problem.seed_source.replace("y.to(tl.float32)", "1.5 * y.to(tl.float32)")
    failure = backend.verify(problem, seed_kernel(problem, off), seed=1)
    assert failure is not None
    assert failure.kind is FailureKind.WRONG_RESULT
