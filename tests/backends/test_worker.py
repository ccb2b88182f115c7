"""The worker and the parent's end of it, on a small hostile library."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelcast.backends import _patience, _worker
from kernelcast.backends._arena import Arena
from kernelcast.backends._library import LibraryChild
from kernelcast.backends._patience import Patience
from kernelcast.backends._proof import detect_sandbox
from kernelcast.backends._sandbox import Grant, Sandbox
from kernelcast.errors import SetupError
from kernelcast.types import Argument, Case, Failure, FailureKind, Fill, Problem, Tolerance

pytestmark = pytest.mark.measures

SOURCE = """
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <thread>
#include <time.h>
#include <unistd.h>

static std::atomic<int> wanted{0};
static void spin(double seconds) {
    timespec began, now;  // of CPU time: on a busy machine, others get a share of the wall's
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &began);
    do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    while (now.tv_sec - began.tv_sec + 1e-9 * (now.tv_nsec - began.tv_nsec) < seconds);
}
static void helper() {
    for (;;) {
        if (wanted == 1) { spin(0.03); wanted = 0; }
        if (wanted == 2) { open("/dev/null", O_RDONLY); wanted = 0; }
        usleep(1000);
    }
}
#ifdef WITH_THREAD
__attribute__((constructor)) static void at_load() { std::thread(helper).detach(); }
#endif

extern "C" void add(const int64_t* a, int64_t* b, int64_t N, int64_t mode) {
    switch (mode) {
        case 0: for (int64_t i = 0; i < N; ++i) b[i] = a[i] + 1; break;
        case 1: abort();
        case 2: _exit(0);
        case 3: for (;;) usleep(100000);
        case 4: for (int fd = 3; fd < 64; ++fd) { int64_t forged[2] = {}; write(fd, forged, 16); }
                break;
        case 5: if (fork() == 0) for (;;) usleep(100000); _exit(7);
        case 6: b[0] = getenv("KERNELCAST_TEST_KEY") ? 1 : 2; break;
        case 7: { volatile char* p = (char*)malloc(8L << 30); b[0] = p ? 1 : 2; break; }
        case 8: tmpfile(); break;
        case 9: pause(); break;
        case 10: mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                 break;
        case 11: mprotect((void*)((uintptr_t)&add & ~4095ul), 4096, PROT_READ | PROT_EXEC); break;
        case 12: for (int fd = 0; fd < 4096; ++fd) close(fd); break;
        case 22: for (int fd = 0; fd < 4096; ++fd) close(fd); for (;;) usleep(100000);
        case 13: { int64_t early[2] = {}; write((int)N, early, 16); break; }
        case 14: for (;;) ;
        case 15: { std::thread t([&] { spin(0.02); b[0] = 2; }); t.join(); break; }
        case 16: { int64_t sum = 0;
                   #pragma omp parallel num_threads(2) reduction(+ : sum)
                   { spin(0.002); sum += 1; }
                   b[0] = sum; break; }
        case 17: wanted = 1; break;
        case 18: wanted = 2; usleep(50000); break;
        case 19: printf("heard"); fflush(stdout); fprintf(stderr, "heard"); b[0] = 2; break;
        case 20: { int64_t halves[1] = {}; write((int)N, halves, 8); for (;;) usleep(100000); }
        case 21: spin(0.03); break;
    }
}
"""
EXTENT = 100


def problem_of(entry: str = "add") -> Problem:
    """Its second dimension is what the kernel is asked to do: a case a mode."""

    def argument(name: str, role: str) -> Argument:
        integers = Fill(kind="integers", low=0, high=9)
        return Argument(name=name, role=role, dtype="int64", shape=("100",), fill=integers)

    return Problem(
        name="hostile",
        family="test",
        summary="",
        language="cpp",
        entry=entry,
        dimensions=("N", "mode"),
        arguments=(argument("a", "input"), argument("b", "output")),
        cases=tuple(
            Case(name=str(mode), dimensions={"N": EXTENT, "mode": mode}) for mode in range(23)
        ),
        flops="1",
        bytes="1",
        tolerance=Tolerance(rtol=0.0, atol=0.0),
        oracle_source="",
        seed_source="",
    )


def compiled(folder: Path, *flags: str) -> Path:
    (folder / "add.cpp").write_text(SOURCE)
    command = ["g++", "-w", "-O1", "-fopenmp", *flags, "-shared", "-fPIC", "add.cpp", "-o"]
    subprocess.run([*command, "add.so"], cwd=folder, check=True)
    return folder / "add.so"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("worker"))


@pytest.fixture(scope="module")
def threaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a thread that is there before the process is sealed."""
    return compiled(tmp_path_factory.mktemp("threaded"), "-DWITH_THREAD")


def start(library: Path, entry: str = "add", cpu_s: int = 5) -> LibraryChild:
    arena = Arena.of(problem_of(entry))
    sandbox = detect_sandbox()
    child = LibraryChild(
        sandbox, library.parent, arena, threads=2, cpu_s=cpu_s, memory_bytes=1 << 30
    )
    child.give(library)
    return child


@pytest.fixture
def child(library: Path) -> Iterator[LibraryChild]:
    with start(library) as child:
        assert child.load(10.0) is None
        yield child


def run(
    child: LibraryChild, mode: int = 0, calls: int = 1, timeout_s: float = 2.0
) -> float | Failure:
    return child.run(str(mode), calls, 0, timeout_s)


def answer(child: LibraryChild, mode: int) -> int:
    """What the kernel left in the first element of its output."""
    output = child.arena.layouts[str(mode)].offsets[1]
    seconds = run(child, mode)
    assert isinstance(seconds, float), seconds
    return int(child.memory[output : output + 8].view("int64")[0])


def refused(child: LibraryChild, mode: int, timeout_s: float = 2.0) -> Failure:
    outcome = run(child, mode, timeout_s=timeout_s)
    assert isinstance(outcome, Failure)
    assert not child.alive
    return outcome


def group(pgid: int) -> list[int]:
    """Living processes of a process group."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == pgid and fields[0] != "Z":
            pids.append(int(stat.parent.name))
    return pids


def descendants(pid: int) -> list[int]:
    """A process and its descendants, the youngest last."""
    pids = [pid]
    for parent in pids:
        pids += map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
    return pids


def test_calls_the_kernel_on_each_slot_and_only_when_asked(child: LibraryChild) -> None:
    layout = child.arena.layouts["0"]
    slots = child.memory[: 5 * layout.stride].reshape(5, -1)
    inputs, outputs = (
        [slot[at : at + 8 * EXTENT].view("int64") for slot in slots] for at in layout.offsets
    )
    for index, numbers in enumerate(inputs):
        numbers[:] = 10 * index
    assert isinstance(child.idle("0", 3, 2.0), float)
    assert not any(output.any() for output in outputs)
    seconds = child.run("0", 3, layout.stride, 2.0)
    assert isinstance(seconds, float)
    assert 0.0 < seconds < 2.0
    assert [set(output.tolist()) for output in outputs] == [{0}, {11}, {21}, {31}, {0}]


@pytest.mark.parametrize(
    ("mode", "kind", "words"),
    [
        pytest.param(1, FailureKind.CRASH, "SIGABRT", id="abort"),
        pytest.param(2, FailureKind.CRASH, "status 0 without answering", id="exit"),
        pytest.param(3, FailureKind.TIMEOUT, "no answer within 0.50 s", id="sleep"),
        pytest.param(4, FailureKind.CHEATING, "SIGSYS", id="write to every descriptor"),
        pytest.param(5, FailureKind.CHEATING, "SIGSYS", id="fork"),
        pytest.param(8, FailureKind.CHEATING, "SIGSYS", id="tmpfile"),
        pytest.param(9, FailureKind.CHEATING, "SIGSYS", id="pause"),
        pytest.param(10, FailureKind.CHEATING, "SIGSYS", id="memory to execute"),
        pytest.param(11, FailureKind.CHEATING, "SIGSYS", id="code made writable"),
        pytest.param(12, FailureKind.CRASH, "without answering", id="close the pipe"),
        pytest.param(22, FailureKind.CRASH, "reply pipe", id="close the pipe and stay"),
        pytest.param(14, FailureKind.TIMEOUT, "no answer within 0.50 s", id="endless loop"),
    ],
)
def test_says_how_a_child_ended(
    child: LibraryChild, mode: int, kind: FailureKind, words: str
) -> None:
    failure = refused(child, mode, timeout_s=0.5)
    assert failure.kind is kind
    assert words in failure.message
    assert isinstance(run(child), Failure)


# -------------------------------------------------------------------------------- a busy machine


def stop(child: LibraryChild) -> None:
    """As good as a machine that gives it no core."""
    os.kill(descendants(child.pid)[-1], signal.SIGSTOP)


def test_a_process_that_gets_no_core_is_starved(
    child: LibraryChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_patience, "_MOST_LIMITS", 3)
    stop(child)
    failure = refused(child, 0, timeout_s=0.1)
    assert failure.kind is FailureKind.TIMEOUT
    assert child.starved
    assert child.share < 0.1
    assert child.core_s < 0.1 * child.wall_s


def test_a_starved_process_is_not_waited_for_beyond_the_deadline(
    child: LibraryChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_patience, "_MOST_LIMITS", 1e6)
    stop(child)
    child.deadline = time.perf_counter() + 0.3
    refused(child, 0, timeout_s=0.1)
    assert child.starved


def test_a_starved_process_that_gets_a_core_in_the_end_answers(
    child: LibraryChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Patience.left_s

    def and_continue(patience: Patience) -> float:
        left_s = look(patience)
        os.kill(descendants(child.pid)[-1], signal.SIGCONT)
        return left_s

    monkeypatch.setattr(Patience, "left_s", and_continue)
    stop(child)
    assert isinstance(run(child, timeout_s=0.2), float)
    assert not child.starved


@pytest.mark.parametrize("mode", [3, 14], ids=["sleep", "endless loop"])
def test_a_process_that_sleeps_or_computes_for_all_of_the_limit_is_not_starved(
    child: LibraryChild, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.setattr(
        _patience, "_MOST_LIMITS", 1e6
    )  # by its CPU time, however busy the machine is
    failure = refused(child, mode, timeout_s=0.5)
    assert failure.kind is FailureKind.TIMEOUT
    assert not child.starved
    computed_s = float(failure.message.split()[-2])
    assert computed_s >= 0.45 if mode == 14 else computed_s < 0.25


def test_a_process_that_gets_no_core_to_load_is_starved(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_patience, "_MOST_LIMITS", 2)
    with start(library) as child:
        stop(child)
        failure = child.load(0.5)
        assert failure is not None
        assert failure.kind is FailureKind.TIMEOUT
        assert child.starved


def reply_fd(child: LibraryChild) -> int:
    """The number under which the worker holds its end of the reply pipe: its last argument."""
    arguments = Path(f"/proc/{descendants(child.pid)[-1]}/cmdline").read_bytes().split(b"\0")
    return int(arguments[-2])


@pytest.mark.parametrize(("mode", "way"), [(13, "early"), (20, "half")])
def test_a_forged_reply_is_cheating(library: Path, mode: int, way: str) -> None:
    """The reply pipe is the one descriptor a kernel may write to, but it cannot know the nonce."""
    with start(library) as child:
        assert child.load(10.0) is None
        forging = dict(child.arena.cases[str(mode)].dimensions, N=reply_fd(child))
        cases = {str(mode): Case(name=str(mode), dimensions=forging)}
        child.arena = Arena(child.arena.problem, cases, child.arena.layouts, child.arena.size)
        failure = refused(child, mode)
    assert failure.kind is FailureKind.CHEATING, way
    assert "forged" in failure.message


def test_no_grandchild_is_left(child: LibraryChild) -> None:
    refused(child, 5)
    child.close()
    deadline = time.monotonic() + 120.0
    while group(child.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert group(child.pid) == []


def test_environment_and_memory_are_limited(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELCAST_TEST_KEY", "secret")
    with start(library) as child:
        assert child.load(10.0) is None
        assert [answer(child, mode) for mode in (6, 7)] == [2, 2]
        limits = Path(f"/proc/{descendants(child.pid)[-1]}/limits").read_text()
    assert "Max core file size        0 " in limits
    assert "Max file size             0 " in limits
    assert "Max cpu time              5 " in limits


def test_a_sealed_kernel_may_still_use_threads_and_its_outputs(child: LibraryChild) -> None:
    assert [answer(child, mode) for mode in (15, 16, 19)] == [2, 2, 2]


def test_cpu_seconds_have_an_end(library: Path) -> None:
    with start(library, cpu_s=1) as child:
        assert child.load(10.0) is None
        failure = refused(child, 14, timeout_s=20.0)
    assert failure.kind is FailureKind.TIMEOUT
    assert "SIGXCPU" in failure.message


# ----------------------------------------------------------------------- work outside of calls


@pytest.mark.parametrize("mode", [0, 15, 16, 21])
def test_an_honest_kernel_takes_no_cpu_time_between_calls(threaded: Path, mode: int) -> None:
    """Be it with threads of its own, with OpenMP's, or with one that sleeps all the time."""
    with start(threaded) as child:
        assert child.load(10.0) is None
        for _ in range(10):
            assert isinstance(run(child, mode), float)
            time.sleep(0.002)
        child.audit()
        assert 0.0 <= child.aside_s < 10e-3  # the 20 stub calls are in it


def test_cpu_time_between_calls_is_added_up(threaded: Path) -> None:
    with start(threaded) as child:
        assert child.load(10.0) is None
        for asked in range(1, 4):
            assert isinstance(run(child, 17), float)
            deadline = time.monotonic() + 120.0
            while child.aside_s < asked * 0.025 and time.monotonic() < deadline:
                time.sleep(0.01)
                child.audit()
            assert 0.025 <= child.aside_s / asked < 0.06


def test_a_thread_that_was_there_before_the_seal_is_sealed_too(threaded: Path) -> None:
    with start(threaded) as child:
        assert child.load(10.0) is None
        failure = refused(child, 18)
    assert failure.kind is FailureKind.CHEATING
    assert "SIGSYS" in failure.message


def test_cpu_time_is_that_of_the_worker_not_of_its_launcher(child: LibraryChild) -> None:
    before = child._cpu_s()
    assert isinstance(run(child, 21), float)
    assert child._cpu_s() - before > 0.01


# ---------------------------------------------------------------------------------- the set-up


def test_a_library_that_does_not_load_is_a_compile_error(library: Path) -> None:
    for path, entry in ((library, "absent"), (library.with_name("add.cpp"), "add")):
        with start(path, entry) as child:
            failure = child.load(10.0)
        assert failure is not None
        assert failure.kind is FailureKind.COMPILE_ERROR


def test_a_library_that_does_not_load_in_time_is_a_timeout(library: Path, tmp_path: Path) -> None:
    (tmp_path / "slow.cpp").write_text(
        "#include <unistd.h>\n__attribute__((constructor)) static void f() { sleep(9); }\n"
    )
    command = ["g++", "-shared", "-fPIC", "slow.cpp", "-o", "slow.so"]
    subprocess.run(command, cwd=tmp_path, check=True)
    with start(tmp_path / "slow.so") as child:
        failure = child.load(1.0)
        assert failure is not None
        assert failure.kind is FailureKind.TIMEOUT
        assert not child.alive
        assert not child.starved


def test_shared_memory_cannot_be_made_shorter(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that could would kill the parent with SIGBUS."""
    create = os.memfd_create
    made: list[int] = []

    def keep(name: str, flags: int) -> int:
        fd = create(name, flags)
        made.append(os.dup(fd))
        return fd

    monkeypatch.setattr(os, "memfd_create", keep)
    with start(library):
        with pytest.raises(PermissionError):
            os.ftruncate(made[0], 0)
        os.close(made[0])


def test_the_worker_imports_no_package() -> None:
    """It runs under `-I -S`, where numpy and kernelcast are not to be found."""
    code = (
        "import sys; sys.path.append(sys.argv[1]); import _worker, _confine;"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(Path(_worker.__file__).parent)]
    loaded = set(subprocess.check_output(command, text=True).split())
    assert {"_worker", "_confine", "ctypes"} <= loaded
    assert not loaded & {"numpy", "kernelcast", "typing", "enum", "re", "collections", "pathlib"}


def test_a_sandbox_that_does_not_come_into_force_is_nobodys_crash(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {**detect_sandbox()._policy(Grant("measure")), "seccomp_number": -1}
    monkeypatch.setattr(Sandbox, "_policy", lambda *_: broken)
    with start(library) as child, pytest.raises(SetupError, match="kernelcast doctor"):
        child.load(10.0)
