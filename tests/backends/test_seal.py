"""The seal holds before a library's first instruction, and the parent sees from outside if not."""

from __future__ import annotations

import itertools
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from kernelcast.backends import _child, _confine, _seal, _seccomp
from kernelcast.backends._arena import Arena
from kernelcast.backends._library import LibraryChild
from kernelcast.backends._proof import detect_sandbox
from kernelcast.types import Failure, FailureKind
from tests.backends.conftest import make_problem

pytestmark = pytest.mark.measures

ENTRY = """
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
extern "C" void kernel() {}
"""
AT_LOAD = """
static void act() { BODY }
__attribute__((constructor)) static void at_load() { act(); }
"""
BY_A_RESOLVER = """
static void act() { BODY }
static void real() {}
extern "C" {
__attribute__((used)) void* resolve() { act(); return reinterpret_cast<void*>(real); }
void chosen() __attribute__((ifunc("resolve")));
}
void* keep = reinterpret_cast<void*>(chosen);  // relocating it calls the resolver
"""
Load = Callable[..., Failure | None]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a library in a child, and return what came of it."""

    def loaded(source: str, *, sealed: bool = True) -> Failure | None:
        (tmp_path / "k.cpp").write_text(ENTRY + source)
        command = ["g++", "-w", "-O1", "-shared", "-fPIC", "k.cpp", "-o", "k.so"]
        subprocess.run(command, cwd=tmp_path, check=True)
        arena = Arena.of(make_problem("double"))
        with LibraryChild(detect_sandbox(), tmp_path, arena, threads=2, cpu_s=20) as child:
            child.give(tmp_path / "k.so")
            if not sealed:
                (child._folder / "seal").unlink()
            return child.load(20.0)

    return loaded


BY_ASSEMBLY = """
#ifdef __x86_64__
    long result = 110;  // getppid; in a resolver, no function of a library can be called yet
    __asm__ volatile("syscall" : "+a"(result) :: "rcx", "r11", "memory");
#else
    register long number __asm__("x8") = 173, result __asm__("x0");
    __asm__ volatile("svc 0" : "=r"(result) : "r"(number) : "memory");
#endif
"""


@pytest.mark.parametrize(
    ("way", "body"),
    [
        pytest.param(AT_LOAD, 'open("/dev/null", O_RDONLY);', id="open"),
        pytest.param(
            AT_LOAD,
            "mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANON, -1, 0);",
            id="map to execute",
        ),
        pytest.param(
            AT_LOAD, "mprotect((void*)((unsigned long)&act & ~4095ul), 4096, 7);", id="patch code"
        ),
        pytest.param(AT_LOAD, BY_ASSEMBLY, id="system call"),
        pytest.param(BY_A_RESOLVER, BY_ASSEMBLY, id="system call of a resolver"),
    ],
)
def test_code_that_runs_at_load_is_sealed(load: Load, way: str, body: str) -> None:
    failure = load(way.replace("BODY", body))
    assert failure is not None
    assert failure.kind is FailureKind.CHEATING
    assert "SIGSYS" in failure.message


@pytest.mark.parametrize("way", [AT_LOAD, BY_A_RESOLVER], ids=["constructor", "resolver"])
def test_code_that_runs_at_load_may_compute(load: Load, way: str) -> None:
    assert (
        load(way.replace("BODY", "volatile int x = 0; for (int i = 0; i < 99; ++i) x = i;")) is None
    )


def test_a_process_without_the_seal_is_found_out(load: Load) -> None:
    failure = load("", sealed=False)
    assert failure is not None
    assert failure.kind is FailureKind.CHEATING
    assert "not sealed" in failure.message


def test_threads_are_counted(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = """
    pthread_t t;
    for (int i = 0; i < 8; ++i)
        pthread_create(&t, 0, [](void*) -> void* { for (;;) usleep(100000); }, 0);
    """
    source = AT_LOAD.replace("BODY", threads)
    assert load(source) is None
    monkeypatch.setattr(_child, "MOST_THREADS", 8)
    failure = load(source)
    assert failure is not None
    assert failure.kind is FailureKind.CHEATING
    assert "it runs more than 8 threads" in failure.message


def test_a_name_that_looks_like_a_status_counts_for_nothing(load: Load) -> None:
    """The name of a thread is text of the kernel's own choice in its status."""
    name = r'"a\nSeccomp_filters:\t9"'
    source = AT_LOAD.replace("BODY", f"prctl(PR_SET_NAME, {name});")
    failure = load(source, sealed=False)
    assert failure is not None
    assert "not sealed" in failure.message


def test_memory_that_is_writable_and_executable_is_found() -> None:
    """As a child that is not sealed could make it."""
    code = "import mmap; m = mmap.mmap(-1, 4096, prot=PROT); print(flush=True); input()"
    verdicts = []
    for protection in (3, 7):
        command = ["python3", "-c", code.replace("PROT", str(protection))]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            verdicts.append(_seal.broken_seal(process.pid, -1))
            process.communicate(b"\n")
    assert verdicts == [None, "it has memory that is both writable and executable"]


# ---------------------------------------------------------------------- a seal that asks the parent

ASKING = """
import ctypes, errno, os, sys
folder, policy, made = sys.argv[1:]
sys.path.insert(0, folder)
import _confine
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, 1, 0, 0, 0)  # no new privileges
def answer():
    try:
        os.mkdir(made)
        os.rmdir(made)
        said = b"y"
    except OSError as error:
        said = b"n" if error.errno == errno.ENOSYS else b"?"
    os.write(1, said)
listener = _confine.listen(_confine.decode(policy), 1)
os.write(1, b"0")
os.read(0, 1)
os.close(listener)
"""
OF_ITS_OWN = """
import struct
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]
allow = struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)
if libc.prctl(22, 2, ctypes.byref(Program(1, allow)), 0, 0):
    os._exit(1)
if _confine.listen(_confine.decode(policy), 1) is not None:
    os._exit(1)
"""
IN_ANOTHER_PROCESS = """
if os.fork():
    os.waitpid(-1, 0)
    os._exit(0)
"""
IN_A_THREAD = """
import threading
thread = threading.Thread(target=lambda: (answer(), os.read(0, 1), answer(), os._exit(0)))
thread.start()
thread.join()
"""


@pytest.mark.parametrize(
    ("before", "takes"),
    [
        pytest.param("", True, id="plain"),
        pytest.param(OF_ITS_OWN, True, id="with a filter of its own"),
        pytest.param(IN_ANOTHER_PROCESS, True, id="in another process"),
        pytest.param(IN_A_THREAD, True, id="in a thread"),
        pytest.param("", False, id="never listened"),
    ],
)
def test_a_seal_that_asks_refuses_once_the_parent_does_not_listen(
    tmp_path: Path, before: str, takes: bool
) -> None:
    sealing = _seccomp.sealing_filter(frozenset({"seccomp.seal"}), "compile", "asks")
    policy = {"seal": sealing, "asks": True, "seccomp_number": _seccomp.call_number()}
    code = f"{ASKING}{before}\nanswer()\nos.read(0, 1)\nanswer()\n"
    folder = str(Path(_confine.__file__).parent)
    arguments = [folder, _confine.encode(policy), str(tmp_path / "made")]
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        said = process.stdout.fileno()
        poll = select.poll()
        poll.register(said, select.POLLIN)

        def heard() -> bytes:
            while ready := poll.poll(60_000):
                if listener is None or not listener.passed(ready):
                    return os.read(said, 1)
            return b""

        listener = None
        assert heard() == b"0"
        listener = _seal.Listener.of(process.pid)
        assert listener is not None
        if takes:
            poll.register(listener.fd, select.POLLIN)
        else:
            os.close(listener.fd)
            listener = None
        process.stdin.write(b"0")
        process.stdin.flush()
        first = heard()
        if listener is not None:
            poll.unregister(listener.fd)
            os.close(listener.fd)
            listener = None
        process.stdin.write(b"0")
        process.stdin.flush()
        assert (first, heard()) == ((b"y" if takes else b"n"), b"n")
        process.kill()


def test_a_process_that_asks_without_end_gets_twice_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = itertools.count()
    polls = iter(range(100))
    child = Mock()
    child._listener.passed.return_value = True
    child._line.poll.poll.side_effect = lambda _: [(next(polls), select.POLLIN)]
    monkeypatch.setattr(_child, "time", Mock(perf_counter=lambda: float(next(seconds))))
    assert not _child.Child._heard(child, b"loaded", 10.0)
    assert next(seconds) >= 20


# ------------------------------------------------------------------ processes that were left behind

CHAIN = """
import os, sys, threading, time
def child(body):
    if os.fork() == 0:
        body()
        os._exit(0)
def sleeper():
    os.write(1, b'%d\\n' % os.getpid())
    time.sleep(600)
def launcher():
    {launcher}
    os.wait()
child(launcher)
os.wait()
"""


@contextmanager
def running(launcher: str, processes: int) -> Iterator[tuple[int, list[int]]]:
    """A launcher's id, when so many processes below its child have said their own ids."""
    command = [sys.executable, "-c", CHAIN.replace("{launcher}", launcher)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.pid, [int(process.stdout.readline()) for _ in range(processes)]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_chain_of_launchers_and_a_worker_has_no_strays() -> None:
    with running("child(sleeper)", 1) as (launcher, (worker,)):
        assert _seal.strays(launcher, worker) is None


@pytest.mark.parametrize(
    ("launcher", "processes"),
    [
        ("child(sleeper); child(sleeper)", 2),
        (
            "child(lambda: (os.write(1, b'%d\\n' % os.getpid()), child(sleeper), time.sleep(600)))",
            2,
        ),
        (
            "child(lambda: (os.write(1, b'%d\\n' % os.getpid()), "
            "threading.Thread(target=lambda: (child(sleeper), time.sleep(600))).start(), "
            "time.sleep(600)))",
            2,
        ),
    ],
    ids=["beside the worker", "a child of the worker", "a child of one of its threads"],
)
def test_a_process_that_was_left_behind_is_seen(launcher: str, processes: int) -> None:
    with running(launcher, processes) as (pid, (worker, *_)):
        assert _seal.strays(pid, worker) == "it left a process behind"


def test_a_worker_that_ended_is_not_mistaken_for_what_it_left() -> None:
    with running("child(sleeper); child(sleeper)", 2) as (launcher, (worker, _)):
        os.kill(worker, signal.SIGKILL)
        deadline = time.monotonic() + 60.0
        # The launcher waits for one child, which takes the dead one away.
        while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert _seal.strays(launcher, worker) == "it ended and left a process behind"
    assert _seal.strays(2**22 + 1, worker) is None  # there is nothing to look at
