"""OpenCL C on the CPU through PoCL: everything here is compiled and launched for real."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelcast import dtypes
from kernelcast.backends import _opencl_device, opencl
from kernelcast.backends._arena import Arena
from kernelcast.backends._launch import read_launch
from kernelcast.backends._opencl_device import DeviceFacts, opencl_devices
from kernelcast.backends._proof import detect_sandbox
from kernelcast.backends._seal import count_filters
from kernelcast.backends.opencl import OpenClBackend
from kernelcast.canonical import kernel_id
from kernelcast.devices import detect_cpu
from kernelcast.errors import NoDevice, ProblemError, SetupError
from kernelcast.testing import BackendContract
from kernelcast.types import (
    Case,
    Failure,
    FailureKind,
    Hidden,
    Kernel,
    Measurement,
    Problem,
    Resource,
    Timing,
)
from tests.backends.conftest import make_problem
from tests.backends.dtype_problems import sum_problem
from tests.backends.gpu_problems import KERNELS, edited, gpu_problem
from tests.hooks import gate_runs

pytestmark = pytest.mark.measures

SIGNATURE = """
__kernel void compute(__global const float* x, __global const float* w, __global float* out, long N,
                      long K)"""
# The sum is made REPEAT times; that N might be 0 keeps the compiler from making it once.
HONEST = """
    long i = get_global_id(0);
    if (i < N)
        for (int r = 0; r < REPEAT; ++r) {
            float sum = 0.0f;
            for (long k = 0; k < K; ++k) sum += x[i + k + (r > N)] * w[k];
            out[i] = sum;
        }
"""
PREAMBLE = """
#define ITEMS 64
#define REPEAT 1
#pragma kernelcast global((N + ITEMS - 1) / ITEMS * ITEMS) local(ITEMS)
"""


@pytest.fixture(scope="session", autouse=True)
def _pocl() -> None:
    if not opencl_devices(detect_sandbox()):
        pytest.skip(f"needs an OpenCL device: {_opencl_device.INSTALL}")


def make_backend() -> OpenClBackend:
    # On a shared machine, two threads wait for each other longer than they compute.
    return OpenClBackend(device=detect_cpu().model_copy(update={"cores": 1}))


@pytest.fixture(scope="module")
def cl() -> Iterator[OpenClBackend]:
    backend = make_backend()
    yield backend
    backend.close()


def with_body(body: str) -> str:
    return f"{PREAMBLE}{SIGNATURE} {{ {body} }}\n"


SEED = with_body(HONEST)


def filter_problem(size: int = 16_384, seed_source: str = SEED) -> Problem:
    problem = make_problem(seed_source, N=size)
    return problem.model_copy(update={"language": "opencl", "entry": "compute"})


def kernel(source: str) -> Kernel:
    return Kernel(id=kernel_id(source, "opencl"), language="opencl", source=source)


def source_of(name: str) -> str:
    return (KERNELS / f"{name}.cl").read_text()


def stated_problem(name: str) -> Problem:
    """What a file under `kernels/` computes, small enough for a CPU, with hidden shapes."""
    problem = gpu_problem(name.removesuffix("_naive"), "cuda")
    timed = {"M": 96, "N": 128, "K": 64, "B": 64} | (
        {} if "M" in problem.dimensions else {"N": 50_000}
    )
    lows_and_highs = {"M": (1, 40), "N": (1, 90), "K": (1, 40), "B": (1, 60)}
    return problem.model_copy(
        update={
            "language": "opencl",
            "entry": "compute",
            "seed_source": source_of(name),
            "cases": (
                Case(name="main", dimensions={each: timed[each] for each in problem.dimensions}),
                problem.cases[1],
            ),
            "hidden": Hidden(
                dimensions={each: lows_and_highs[each] for each in problem.dimensions}
            ),
        }
    )


def timing(measurement: Measurement) -> Timing:
    assert measurement.timing is not None, measurement.failure
    return measurement.timing


def failure_of(backend: OpenClBackend, source: str) -> Failure:
    measurement = backend.measure(filter_problem(), kernel(source), seed=1)
    assert measurement.failure is not None
    return measurement.failure


class TestOpenClContract(BackendContract):
    tie_log2 = 0.5  # PoCL hands the work to a thread of its own, which a busy machine lets wait

    def make(self) -> OpenClBackend:
        return make_backend()

    def problem(self) -> Problem:
        return filter_problem(40_000)

    def wrong_source(self) -> str:
        return edited(SEED, "sum = 0.0f", "sum = 1.0f")


# ------------------------------------------------------------------------------ honest kernels


@pytest.mark.slow  # PoCL takes more than a second to compile anything
@pytest.mark.parametrize(
    "name", gate_runs(2, ["histogram", "matmul", "softmax", "axpy", "row_sum", "stencil"])
)
def test_honest_kernels_are_right_on_all_shapes(cl: OpenClBackend, name: str) -> None:
    problem = stated_problem(name)
    measurement = cl.measure(problem, kernel(problem.seed_source), seed=1)
    assert timing(measurement).runtime_s > 0.0
    assert measurement.sandbox == cl.level
    assert 0.0 < measurement.device_s <= cl.quote(problem)[Resource.DEVICE_S]


def test_twice_the_work_is_found_slower(cl: OpenClBackend) -> None:
    twice = kernel(edited(SEED, "REPEAT 1", "REPEAT 2"))
    for seed in range(4):  # a burst of load is not the topic
        found = timing(cl.measure(filter_problem(60_000), twice, seed))
        if abs(found.log2_speedup + 1.0) < 0.35:
            break
    assert found.log2_speedup == pytest.approx(-1.0, abs=0.35)
    assert found.high < 0.0


def test_local_extents_may_depend_on_hidden_dimensions(cl: OpenClBackend) -> None:
    """PoCL makes code for each size of group, and the sealed process cannot."""
    problem = stated_problem("bias_gelu")
    for seed in range(2):
        timing(cl.measure(problem, kernel(problem.seed_source), seed))
    program = cl.programs(problem, problem.cases, problem.seed_source)
    assert not isinstance(program, Failure)
    made = {path.name for path in program["main"].cache.glob("*/*/compute/*-goffs0*")}
    assert len(made) > 3


def test_small_and_large_grids_of_one_kernel(cl: OpenClBackend) -> None:
    """PoCL makes two kinds of code for them: each case must find its own."""
    problem = stated_problem("vector_add")
    large = Case(name="large", dimensions={"N": 70_000})
    both = problem.model_copy(update={"cases": (*problem.cases, large)})
    found = timing(cl.measure(both, kernel(problem.seed_source), seed=1))
    assert [each.case for each in found.cases] == ["main", "large"]


# ------------------------------------------------------------------------------------ failures


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (f"{HONEST} if (i == 3) out[i] += 1;", FailureKind.WRONG_RESULT, "1 of 16384"),
        (f"{HONEST} if (i == 0) out[N] = 1;", FailureKind.WRONG_RESULT, "past the end of out"),
        (f"{HONEST} if (i == 0) out[-1] = 1;", FailureKind.WRONG_RESULT, "between w and out"),
        (
            f"{HONEST} if (i == 0) ((__global float*)x)[3] = 0;",
            FailureKind.CHEATING,
            "changed its input x",
        ),
        (f"{HONEST} if (i == 0) out[1L << 40] = 1;", FailureKind.CRASH, "SIGSEGV"),
        (f"{HONEST} if (i == 0) for (;;) out[1] = 2;", FailureKind.TIMEOUT, "no answer"),
        ("undeclared();", FailureKind.COMPILE_ERROR, "kernel.cl:7:"),
    ],
)
def test_failures_are_values(cl: OpenClBackend, body: str, kind: FailureKind, words: str) -> None:
    failure = failure_of(cl, with_body(body))
    assert failure.kind is kind
    assert words in failure.message
    assert "tempfile" not in failure.message


@pytest.mark.parametrize(
    "around", ["if (get_local_id(0) < 7)", "for (int r = 0; r < get_local_id(0); ++r)"]
)
def test_barriers_that_not_all_reach_do_no_harm(cl: OpenClBackend, around: str) -> None:
    """What they do is undefined, on PoCL a hang or a crash: a failure, and the backend lives on."""
    diverges = f"{around} {{ t[get_local_id(0)] = 1; barrier(CLK_LOCAL_MEM_FENCE); }}"
    kind = failure_of(cl, with_body(f"__local int t[ITEMS]; {diverges} {HONEST}")).kind
    assert kind in (FailureKind.TIMEOUT, FailureKind.CRASH, FailureKind.WRONG_RESULT)
    timing(cl.measure(filter_problem(), kernel(SEED), seed=2))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (edited(SEED, "compute(", "other("), "no __kernel function 'compute'"),
        (edited(SEED, "long K)", "long K, long L)"), "long, long, long; it is handed 3"),
        (edited(SEED, "__global const float* w", "__local float* w"), "__local float*"),
        (edited(SEED, "long K", "float K"), "2 integers"),
        (edited(SEED, "(N + ITEMS - 1) / ITEMS * ITEMS", "N"), "case ragged: global (77, 1, 1)"),
        (edited(SEED, "ITEMS 64", "ITEMS 8192"), "8192 work-items a group; 4096 is the most"),
        (edited(SEED, "local(ITEMS)", "local(ITEMS - 64)"), "local (0, 1, 1)"),
        (edited(SEED, "global((N", "global((Q"), "unknown name 'Q'"),
        (edited(SEED, "global((N", "global((N * 99999999999"), "local (64, 1, 1)"),
        (edited(SEED, "#pragma kernelcast", "#pragma"), "#pragma kernelcast global(...)"),
        (
            edited(SEED, "__kernel", "__kernel __attribute__((reqd_work_group_size(32, 1, 1)))"),
            "reqd_work_group_size is (32, 1, 1)",
        ),
        (
            with_body(f"__local float t[1 << 26]; t[get_local_id(0)] = 1; {HONEST} out[0] = t[K];"),
            "268435456 bytes of local memory; ",
        ),
    ],
)
def test_what_is_no_kernel_of_the_problem_is_said(
    cl: OpenClBackend, source: str, words: str
) -> None:
    failure = cl.inspect(filter_problem(), kernel(source)).failure
    assert failure is not None
    assert failure.kind is FailureKind.COMPILE_ERROR
    assert words in failure.message


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (with_body(f'{HONEST} __asm__("nop");'), FailureKind.COMPILE_ERROR),
        (with_body(f'{HONEST} as\\\nm("nop");'), FailureKind.COMPILE_ERROR),
        ("#undef __asm__\n" + with_body(f'{HONEST} __asm__("syscall");'), FailureKind.CHEATING),
        (
            "constant int a = '/*';\n#undef __asm\nconstant int b = '*/';\n"
            + with_body(f'{HONEST} __asm("int $0x80");'),
            FailureKind.CHEATING,
        ),
        (with_body(f"{HONEST} out[0] += __builtin_readcyclecounter();"), FailureKind.CHEATING),
        (
            "#define P(a, b) a##b\n" + with_body(f'{HONEST} P(__as, m__)("nop");'),
            FailureKind.COMPILE_ERROR,
        ),
        (
            "int getpid(void);\n" + with_body(f"{HONEST} out[0] = getpid();"),
            FailureKind.COMPILE_ERROR,
        ),
        (f'#include "{Path(__file__)}"\n{SEED}', FailureKind.COMPILE_ERROR),
    ],
)
def test_no_assembly_no_system_no_files(cl: OpenClBackend, source: str, kind: FailureKind) -> None:
    failure = cl.inspect(filter_problem(), kernel(source)).failure
    assert failure is not None
    assert failure.kind is kind


# A `switch` is a jump to a computed address, `printf` a call of the C library.
EVERYTHING = """
    __local int t[ITEMS];
    long i = get_global_id(0), j = get_local_id(0);
    t[j] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    atomic_add(&t[j / 2], 1);
    barrier(CLK_LOCAL_MEM_FENCE);
    float v = x[i % N], s = t[j];
    switch (i % 9) {
        case 0: s += sin(v); break; case 1: s += exp(v); break; case 2: s += log(v); break;
        case 3: s += pow(v, w[0]); break; case 4: s += erf(v); break; case 5: s += tanh(v); break;
        case 6: s += cbrt(v) + fmod(v, w[0]); break; case 7: s += native_exp(v) + rsqrt(v); break;
        case 8: s += (float)((double)v * w[0]) + popcount(as_int(v)) + convert_int_rte(v); break;
    }
    if (s == 12345.0f) printf("%f", s);
    if (i < N) out[i] = s;
"""


@pytest.mark.parametrize("body", [EVERYTHING, f"/* no asm, no __asm__ here */ {HONEST}"])
def test_what_the_language_has_is_not_taken_for_assembly(cl: OpenClBackend, body: str) -> None:
    problem, source = filter_problem(), with_body(body)
    assert isinstance(cl.programs(problem, problem.cases, source), dict)


def test_code_that_is_made_later_is_inspected_too(cl: OpenClBackend, tmp_path: Path) -> None:
    """And found again: the library is still there when the kernel is measured a second time."""
    problem, source = filter_problem(), edited(SEED, "REPEAT 1", "REPEAT 4")
    programs = cl.programs(problem, problem.cases, source)
    assert not isinstance(programs, Failure)
    (tmp_path / "a.c").write_text('void f(void) { __asm__ volatile("syscall"); }\n')
    later = programs["main"].cache / "later.so"
    flags = ["-x", "c", "-shared", "-fPIC", "-nostdlib"]
    subprocess.run(
        ["g++", *flags, str(tmp_path / "a.c"), "-o", str(later)], check=True, timeout=900
    )
    for _ in range(2):
        failure = cl.programs(problem, problem.cases, source)
        assert isinstance(failure, Failure)
        assert failure.kind is FailureKind.CHEATING
        assert failure.message.endswith(": syscall")


def test_without_objdump_pocl_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = shutil.which

    def without(name: str) -> str | None:
        return None if name == "objdump" else whole(name)

    monkeypatch.setattr(shutil, "which", without)
    with pytest.raises(SetupError, match="apt-get install binutils"):
        make_backend()


def test_imports_of_native_code_are_seen(tmp_path: Path) -> None:
    source = tmp_path / "a.c"
    source.write_text("int system(const char*); int f(void) { return system(0); }\n")
    library = tmp_path / "kernel.so"
    flags = ["-x", "c", "-shared", "-fPIC", "-nostdlib"]
    subprocess.run(["g++", *flags, str(source), "-o", str(library)], check=True, timeout=900)
    failure = opencl._foreign_parts(library)
    assert failure is not None
    assert failure.kind is FailureKind.CHEATING
    assert "system" in failure.message


def test_a_broken_seed_is_a_problem_error(cl: OpenClBackend) -> None:
    broken = filter_problem(seed_source=with_body("out[0] = 1;"))
    with pytest.raises(ProblemError, match="seed kernel of filter"):
        cl.measure(broken, kernel(SEED), seed=1)


# ------------------------------------------------------------------------- evidence, processes


def test_evidence_is_read_from_the_code_that_is_launched(cl: OpenClBackend) -> None:
    problem = stated_problem("matmul")
    tiled = cl.inspect(problem, kernel(source_of("matmul")))
    naive = cl.inspect(problem, kernel(source_of("matmul_naive")))
    assert (tiled.shared_bytes, naive.shared_bytes) == (2 * 16 * 16 * 4, 0)
    assert (tiled.block_threads, naive.block_threads) == (256, 64)
    assert 100 < naive.code_bytes < tiled.code_bytes < 100_000
    assert tiled.instructions["vector"] > naive.instructions["vector"]
    assert tiled.instructions["total"] > tiled.instructions["branch"] > 0
    assert tiled.roofline_s == naive.roofline_s
    assert tiled.registers is tiled.stack_bytes is tiled.occupancy is None
    assert tiled.compile_s > 0.0


def test_a_timed_process_is_sealed_and_idles(cl: OpenClBackend) -> None:
    """A filter is in force before the first launch, and stays; waiting takes no CPU time."""
    problem = filter_problem()
    programs = cl.programs(problem, problem.cases, problem.seed_source)
    assert not isinstance(programs, Failure)
    with cl.start(Arena.of(problem), programs) as child:
        assert child.load(20.0) is None
        assert child._worker_pid is not None
        filters = [child._filters, count_filters(child._worker_pid)]
        for case in ("main", "ragged"):
            assert isinstance(child.run(case, 1, 0, 5.0), float)
            filters.append(count_filters(child._worker_pid))
        assert child.inspect() is None
        child.audit()
        before_s = child.aside_s
        time.sleep(0.3)
        child.audit()
        assert child.aside_s - before_s < 0.01
    if "seccomp.seal" in cl.sandbox.mechanisms:
        assert [each - filters[0] for each in filters] == [0, 1, 1, 1]


def test_a_binary_that_does_not_load_is_a_failure(cl: OpenClBackend) -> None:
    problem = filter_problem()
    source = edited(SEED, "REPEAT 1", "REPEAT 3")
    programs = cl.programs(problem, problem.cases, source)
    assert not isinstance(programs, Failure)
    (programs["main"].folder / "kernel.bin").write_bytes(b"no program")
    failure = failure_of(cl, source)
    assert failure.kind is FailureKind.COMPILE_ERROR
    assert "does not load" in failure.message


def test_the_launch_is_read_from_the_pragma() -> None:
    launch = read_launch(source_of("transpose"), "global", "local")
    assert launch is not None
    assert launch.grid_extent({"M": 19, "N": 77}) == (80, 32, 1)
    assert launch.block_extent({}) == (16, 16, 1)
    assert read_launch("#pragma kernelcast grid(1) block(1)\n", "global", "local") is None


# -------------------------------------------------------------------------------------- devices


def test_a_device_that_is_not_there_is_a_setup_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        NoDevice, match="no OpenCL device 0 of platform 9; known: platform=0 index=0"
    ):
        OpenClBackend(platform=9)
    monkeypatch.setattr(_opencl_device, "opencl_devices", lambda _sandbox: [])
    with pytest.raises(NoDevice, match="apt-get install ocl-icd-libopencl1 pocl-opencl-icd"):
        OpenClBackend()


def test_the_gate_and_the_docs_install_the_library_and_the_device() -> None:
    root = Path(__file__).parents[2]
    for path in (".ci/run", "docs/how-to/opencl.md"):
        text = (root / path).read_text()
        assert all(package in text for package in _opencl_device.INSTALL.split()[2:]), path


def test_the_device_is_this_cpu(cl: OpenClBackend) -> None:
    (found,) = [each for each in opencl_devices(detect_sandbox()) if each.is_pocl][:1]
    device = found.as_device()
    assert device.kind == "cpu"
    assert 1 <= device.cores <= detect_cpu().cores
    assert device.name == found.name
    assert "PoCL" in cl.toolchain


def test_a_gpu_is_described_as_far_as_opencl_tells() -> None:
    facts = DeviceFacts(0, 0, "Vendor", "OpenCL 3.0", "GPU", "1", 4, 80, 1500, 1024, 1 << 22, 49152)
    device = facts.as_device()
    assert (device.kind, device.cores, device.clock_hz) == ("gpu", 80, 1.5e9)
    assert device.peak_flops == {}
    assert not facts.is_pocl


@pytest.mark.parametrize("name", ["float16", "bool"])
def test_narrow_arrays_are_measured(cl: OpenClBackend, tmp_path: Path, name: dtypes.Name) -> None:
    problem = sum_problem(tmp_path, name, "opencl")
    assert cl.measure(problem, kernel(problem.seed_source), seed=1).failure is None
    unfinished = problem.seed_source.replace("i < N", "i < N - 2")
    failure = cl.measure(problem, kernel(unfinished), seed=1).failure
    assert failure is not None
    assert failure.kind is FailureKind.WRONG_RESULT
