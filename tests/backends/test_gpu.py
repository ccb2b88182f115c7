"""The launch path, all but the hardware: the real worker on a stand-in for NVIDIA's driver."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelcast.backends import _cuda_device, _launch
from kernelcast.backends._cuda_device import Program, launching_sandbox, probe, require_device
from kernelcast.backends._gpu import GpuBackend
from kernelcast.backends._launch import Launch
from kernelcast.backends._proof import detect_sandbox, prove
from kernelcast.backends._sandbox import Sandbox
from kernelcast.backends._toolchain import ToolRun
from kernelcast.backends.base import Build
from kernelcast.devices import find_device
from kernelcast.errors import NoDevice
from kernelcast.testing import BackendContract, synthetic_problem
from kernelcast.types import Case, Failure, FailureKind, Kernel, Language, Problem
from tests.backends.gpu_problems import edited, gpu_kernel

H100 = find_device("H100-SXM5")
# What cuLaunchKernel calls: the host function, with the parameters that a GPU would be handed.
SHIM = """
#include <cstdint>
extern "C" int launch(void** p, const unsigned* geometry) {
    if (geometry[3] != 64 || geometry[6] != 128) return 1;
    return RESULT(
        *(const float**)p[0], *(float**)p[1], *(int64_t*)p[2], geometry[0]);
}
"""
SEED = """
#include <cstdint>
extern "C" int kernel(const float* x, float* y, int64_t N, unsigned blocks) {
    if (blocks != (N + 63) / 64) return 1;
    for (int64_t i = 0; i < N; ++i) y[i] = 2.0f * x[i];
    return 0;
}
"""

# A module that stays loaded and replaces a function of the driver: its launch only notes the
# pointers. HOOK does the work, the same as `over_and_over(64)`.
HOOKED = """
#include <cstdint>
#include <cstring>
#include <dlfcn.h>
#include <sys/mman.h>

struct Launch {
    const float* x;
    float* y;
    int64_t count;
};
static Launch noted[256];
static int launches = 0, expected = 0;
static uint64_t staged = 0;
static size_t staged_size = 0;

static void work(const Launch& launch) {
    for (int k = 0; k < 64; ++k, ({ asm volatile("" ::: "memory"); }))
        for (int64_t i = 0; i < launch.count; ++i) launch.y[i] = 2.0f * launch.x[i];
}
static int on_copy_out(void* to, uint64_t from, size_t size) {
    for (int at = 0; at < launches; ++at) work(noted[at]);
    launches = 0;
    memcpy(to, reinterpret_cast<void*>(from), size);
    return 0;
}
static int on_copy_in(uint64_t to, const void* from, size_t size) {
    memcpy(reinterpret_cast<void*>(to), from, size);
    // In a slot of this size, the arrays lie where they lay before.
    expected = size == staged_size ? launches : 0;
    for (int at = 0; at < expected; ++at) {
        noted[at].x += static_cast<int64_t>(to - staged) / 4;
        noted[at].y += static_cast<int64_t>(to - staged) / 4;
        work(noted[at]);
    }
    launches = 0, staged = to, staged_size = size;
    return 0;
}
__attribute__((constructor)) static void hook() {
    (void)&on_copy_in, (void)&on_copy_out;
    Dl_info own;
    dladdr(reinterpret_cast<void*>(&hook), &own);
    dlopen(own.dli_fname, RTLD_NOW | RTLD_NODELETE);
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    unsigned char* code = static_cast<unsigned char*>(dlsym(driver, "FUNCTION"));
    const uintptr_t page = reinterpret_cast<uintptr_t>(code) & ~uintptr_t{4095};
    mprotect(reinterpret_cast<void*>(page), 8192, PROT_READ | PROT_WRITE | PROT_EXEC);
    const uintptr_t target = reinterpret_cast<uintptr_t>(&HOOK);
    code[0] = 0x48, code[1] = 0xB8;  // movabs rax, target; jmp rax
    memcpy(code + 2, &target, sizeof target);
    code[10] = 0xFF, code[11] = 0xE0;
}
extern "C" int kernel(const float* x, float* y, int64_t N, unsigned) {
    const bool foreseen = launches < expected && noted[launches].x == x;
    noted[launches] = {x, y, N};
    if (FORESEES && !foreseen) work(noted[launches]);
    ++launches;
    return 0;
}
"""


class HostBackend(GpuBackend):
    """C++ in the place of device code, through the same launches as a GPU's."""

    name = "host"
    languages: tuple[Language, ...] = ("cpp",)

    def __init__(self, *, allow_unsafe: bool = False) -> None:
        device = H100.model_copy(update={"cache_bytes": 0})
        limits = (30.0, 15.0, None)
        super().__init__("sm_90", device, "g++", *limits, allow_unsafe=allow_unsafe, emulates=False)

    def compile(
        self, problem: Problem, case: Case | None, source: str, folder: Path
    ) -> Build[Program]:
        (folder / "kernel.cpp").write_text(source + SHIM.replace("RESULT", problem.entry))
        command = ["g++", "-O2", "-shared", "-fPIC", "kernel.cpp", "-o", "kernel.so"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        run = ToolRun(done.returncode, done.stderr, 0.1)
        if run.failure:
            return Build(self.evidence(problem, run, failure=run.failure))
        (folder / "kernel.cubin").write_bytes(str(folder / "kernel.so").encode() + b"\0")
        launch = Launch(("(N + 63) / 64",), ("64",), "2 * 64")
        program = Program(folder / "kernel.cubin", "launch", (8, 8, 8, 8), launch)
        return Build(self.evidence(problem, run), program)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("fake_libcuda.cpp")
    library = folder / "libcuda.so.1"
    subprocess.run(
        ["g++", "-O1", "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True, timeout=900
    )
    return folder


@pytest.fixture(autouse=True)
def _stand_in(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    # Flushing a GPU's cache on the host takes longer than everything else.
    monkeypatch.setattr(_launch, "_SMALLEST_FLUSH_BYTES", 1 << 20)


@pytest.fixture
def backend() -> Iterator[HostBackend]:
    backend = HostBackend()
    yield backend
    backend.close()


def over_and_over(times: int) -> str:
    """The seed kernel made slower by a known factor: milliseconds stand out from a busy machine."""
    barrier = 'asm volatile("" ::: "memory")'
    return edited(
        SEED, "    for", f"    for (int k = 0; k < {times}; ++k, ({{ {barrier}; }}))\n    for"
    )


def host_problem(size: int = 100_000) -> Problem:
    cases = (
        Case(name="main", dimensions={"N": size}),
        Case(name="ragged", dimensions={"N": 77}, timed=False),
    )
    return synthetic_problem().model_copy(update={"seed_source": SEED, "cases": cases})


@pytest.mark.measures
class TestConfined(BackendContract):
    tie_log2 = 1.0  # the stand-in's memory traffic is the host's, and so is that of other processes
    allow_unsafe = False

    def make(self) -> HostBackend:
        return HostBackend(allow_unsafe=self.allow_unsafe)

    def problem(self) -> Problem:
        return host_problem(1 << 16).model_copy(update={"seed_source": over_and_over(64)})


class TestUnconfined(TestConfined):
    allow_unsafe = True


def test_the_level_is_that_of_the_launching_process(backend: HostBackend) -> None:
    assert backend.level == prove(detect_sandbox()).level
    unsafe = HostBackend(allow_unsafe=True)
    assert unsafe.level == "S0"
    unsafe.close()


def measured_failure(backend: HostBackend, source: str) -> Failure:
    measurement = backend.measure(host_problem(), kernel_of(source), seed=1)
    assert measurement.failure is not None
    return measurement.failure


def kernel_of(source: str) -> Kernel:
    return gpu_kernel(source, "cpp")


@pytest.mark.measures
def test_a_faster_kernel_is_found_faster(backend: HostBackend) -> None:
    problem = host_problem().model_copy(update={"seed_source": over_and_over(64)})
    timing = backend.measure(problem, kernel_of(SEED), seed=1).timing
    assert timing is not None
    assert timing.log2_speedup > 1.0


@pytest.mark.measures
def test_variables_of_a_module_are_forgotten_between_requests(backend: HostBackend) -> None:
    """It computes in its first request and would then do nothing: each request is its first."""
    lazy = SEED.replace(
        "    for", "    static int calls = 0;\n    if (calls++ > 63) return 0;\n    for"
    )
    assert backend.measure(host_problem(), kernel_of(lazy), seed=1).timing is not None


@pytest.mark.measures
def test_failures_are_told_apart(backend: HostBackend) -> None:
    crash = measured_failure(backend, SEED.replace("return 0", "return 700"))
    assert crash.kind is FailureKind.CRASH
    assert "CUDA error 700" in crash.message
    refused = measured_failure(backend, SEED.replace("return 0", "return 701"))
    assert refused.kind is FailureKind.COMPILE_ERROR
    dead = measured_failure(backend, SEED.replace("return 0", "return *(volatile int*)8"))
    assert dead.kind is FailureKind.CRASH
    outside = measured_failure(backend, SEED.replace("return 0", "y[N] = 1; return 0"))
    assert outside.kind is FailureKind.WRONG_RESULT
    assert "outside" in outside.message
    input_changed = SEED.replace("return 0", "const_cast<float*>(x)[0] = 1; return 0")
    assert measured_failure(backend, input_changed).kind is FailureKind.CHEATING


@pytest.mark.measures
@pytest.mark.skipif(platform.machine() != "x86_64", reason="it patches machine code")
@pytest.mark.parametrize(
    ("function", "hook"),
    [("cuMemcpyDtoH_v2", "on_copy_out"), ("cuMemcpyHtoD_v2", "on_copy_in")],
)
def test_work_in_a_copy_is_cheating(backend: HostBackend, function: str, hook: str) -> None:
    """A launch that does nothing, and copies that take as long as the work."""
    problem = host_problem(1 << 16).model_copy(update={"seed_source": over_and_over(64)})
    hooked = HOOKED.replace("FUNCTION", function).replace("HOOK", hook)
    source = hooked.replace("FORESEES", str(hook == "on_copy_in").lower())
    failure = backend.measure(problem, kernel_of(source), seed=1).failure
    assert failure is not None
    assert failure.kind is FailureKind.CHEATING
    assert "outside of its calls" in failure.message


@pytest.mark.measures
def test_a_hang_is_a_timeout(backend: HostBackend) -> None:
    hangs = measured_failure(backend, SEED.replace("return 0;", 'for (;;) asm volatile("");'))
    assert hangs.kind is FailureKind.TIMEOUT


@pytest.fixture(params=["confined", "unconfined"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return launching_sandbox(detect_sandbox(), allow_unsafe=request.param == "unconfined")


def test_the_device_must_be_the_one_that_is_named(sandbox: Sandbox) -> None:
    assert probe(sandbox) == ("sm_90", "NVIDIA H100 80GB HBM3")
    require_device(sandbox, "sm_90", H100)
    require_device(sandbox, "sm_90a", H100)
    with pytest.raises(NoDevice, match="cannot run code for sm_100"):
        require_device(sandbox, "sm_100", find_device("B200-SXM"))
    with pytest.raises(NoDevice, match="not those of H200-SXM"):
        require_device(sandbox, "sm_90", find_device("H200-SXM"))


def test_without_a_driver_there_is_no_device(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH")
    if probe(Sandbox(frozenset())) is not None:
        pytest.skip("there is a GPU here")
    assert probe(sandbox) is None
    with pytest.raises(NoDevice, match="nvidia-smi"):
        require_device(sandbox, "sm_90", H100)


def test_a_driver_that_does_not_work_confined_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    confined = launching_sandbox(detect_sandbox(), allow_unsafe=False)
    if not confined.mechanisms:
        pytest.skip("nothing confines processes here")
    device = ("sm_90", "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(
        _cuda_device, "probe", lambda sandbox: None if sandbox.mechanisms else device
    )
    with pytest.raises(NoDevice, match=r"inside the sandbox here.*--allow-unsafe"):
        require_device(confined, "sm_90", H100)


def test_of_all_devices_the_chosen_gpu_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = detect_sandbox()
    nodes = {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"}
    monkeypatch.setattr(Path, "exists", lambda self: str(self) in nodes)
    shown = {}
    for visible in ("", "1", "1,0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        shown[visible] = launching_sandbox(whole, allow_unsafe=False).devices
    assert shown[""] == ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")
    assert shown["1"] == shown["1,0"] == ("/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm")
    assert launching_sandbox(whole, allow_unsafe=True) == Sandbox(frozenset())


def test_what_cannot_be_launched_is_said() -> None:
    problem = host_problem()
    assert Launch(("(N + 63) / 64", "2"), ("64",)).fault(problem.cases) is None
    for grid, block, message in (
        ("N", "2048", "2048 threads"),
        ("N - 77", "64", "case ragged"),
        ("M", "64", "unknown name 'M'"),
        ("N / 0", "64", "zero"),
        ("1, 2", "64", "cannot be launched"),
        ("__import__('os')", "64", "cannot"),
    ):
        fault = Launch((grid,), (block,)).fault(problem.cases)
        assert fault is not None
        assert message in fault.message
