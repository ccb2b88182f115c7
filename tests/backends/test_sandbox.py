"""The canaries themselves are checked by `bench/canaries.py`, which sabotages every mechanism; here
a few of them, and above all real kernels and a real compiler that try to get out.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import platform
import shutil
import socket
import struct
import subprocess
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.backends import _confine, _sandbox, _seal, _seccomp
from kernelcast.backends._arena import Arena
from kernelcast.backends._child import Child
from kernelcast.backends._library import LibraryChild
from kernelcast.backends._proof import (
    Proof,
    admit,
    detect_sandbox,
    prove,
    required,
    what_would_raise,
)
from kernelcast.backends._sandbox import Confined, Grant, Level, Sandbox, landlock_abi
from kernelcast.backends._toolchain import program_tree, run_tool
from kernelcast.backends.cpp import CppBackend
from kernelcast.canonical import kernel_id
from kernelcast.devices import detect_cpu
from kernelcast.errors import SetupError
from kernelcast.types import (
    Argument,
    Case,
    Failure,
    FailureKind,
    Kernel,
    Problem,
    Tolerance,
)
from tests.backends.conftest import SEED

pytestmark = [
    pytest.mark.measures,
    pytest.mark.skipif(
        shutil.which("bwrap") is None or landlock_abi() == 0,
        reason="needs bubblewrap (apt-get install bubblewrap) and a kernel with Landlock",
    ),
]


def kernel(source: str) -> Kernel:
    return Kernel(id=kernel_id(source, "cpp"), language="cpp", source=source)


@pytest.fixture(scope="module")
def whole() -> Sandbox:
    return detect_sandbox()


def without(sandbox: Sandbox, *names: str) -> Proof:
    return prove(replace(sandbox, mechanisms=sandbox.mechanisms - {*names}))


def test_every_canary_is_denied_here(whole: Sandbox) -> None:
    proof = prove(whole)
    assert proof.level == "S3", proof.lacks("S3")
    assert proof.lacks("S3") == []
    assert proof.lacks("S4") != []
    assert len(required("S3")) > 80
    assert required("S0") < required("S1") < required("S2") < required("S3")


@pytest.mark.parametrize(
    ("mechanism", "canary", "level"),
    [
        ("bwrap.net", "measure: bwrap.net", "S2"),
        ("bwrap.files", "compile: bwrap.files", "S2"),
        ("landlock.write", "measure: landlock.write", "S2"),
        ("seccomp.processes", "measure: forks", "S1"),
        ("seccomp.sockets", "compile: seccomp.sockets", "S1"),
        ("seccomp.seal", "measure: seccomp.seal", "S1"),
        ("limit.memory", "measure: memory", "S0"),
        ("environment", "measure: environment", "S0"),
    ],
)
def test_a_lost_mechanism_is_noticed(
    whole: Sandbox, mechanism: str, canary: str, level: Level
) -> None:
    proof = without(whole, mechanism)
    assert not proof.canaries[canary]
    assert proof.level == level


def test_what_a_canary_does_not_report_counts_as_not_denied(
    whole: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove.cache_clear()
    monkeypatch.setattr(_sandbox, "_LAUNCH", "import sys; sys.exit('died')  # {0} {1}")
    proof = prove(whole)
    prove.cache_clear()
    assert proof.level == "S0"
    assert proof.canaries == {}
    assert proof.trouble == "died"


def test_unwrapped_it_is_a_lower_level(whole: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "bwrap" else real(name))
    lower = detect_sandbox()
    assert not lower.wrapped
    assert prove(lower).level == "S2"
    assert "apt-get install bubblewrap" in what_would_raise(prove(lower))
    with pytest.raises(SetupError, match=r"reaches S2, and S3 is required.*install bubblewrap"):
        CppBackend(detect_cpu(), require="S3")


def test_unconfined_kernels_are_refused_unless_allowed() -> None:
    nothing = Sandbox(frozenset())
    with pytest.raises(SetupError, match=r"level S0.*--allow-unsafe"):
        admit(nothing, None, allow_unsafe=False)
    with pytest.raises(SetupError, match="reaches S0, and S1 is required"):
        admit(nothing, "S1", allow_unsafe=True)
    assert admit(nothing, None, allow_unsafe=True) == "S0"
    assert admit(nothing, "S0", allow_unsafe=False) == "S0"
    with pytest.raises(SetupError, match="levels are S0, S1"):
        admit(nothing, "S9", allow_unsafe=False)


def test_open_files_and_network_are_refused_unless_asked_for() -> None:
    other_user = Sandbox(dict(_sandbox.mechanism_sets())["S1"])
    if prove(other_user).level != "S1":
        pytest.skip("needs root, which can start a process of another user")
    with pytest.raises(SetupError, match=r"level S1.*--require S1 or --allow-unsafe"):
        admit(other_user, None, allow_unsafe=False)
    with pytest.raises(SetupError, match="reaches S1, and S2 is required"):
        admit(other_user, "S2", allow_unsafe=True)
    assert admit(other_user, "S1", allow_unsafe=False) == "S1"
    assert admit(other_user, None, allow_unsafe=True) == "S1"


# --------------------------------------------------------------------------- a kernel that tries

ESCAPES = r"""
#include <arpa/inet.h>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
extern "C" void attempt(const char* path, int64_t* got_through, int64_t what, int64_t number) {
    bool got = false;
    switch (what) {
        case 0: got = open(path, O_RDONLY) >= 0; break;
        case 1: got = open(path, O_WRONLY | O_CREAT, 0600) >= 0; break;
        case 2: { struct stat s; got = stat(path, &s) == 0; break; }
        case 3: got = socket(AF_INET, SOCK_STREAM, 0) >= 0; break;
        case 4: got = fork() >= 0; break;
        case 5: got = kill((pid_t)number, 0) == 0; break;
        case 6: got = execl("/bin/true", "true", (char*)nullptr) == 0; break;
        case 7: got = ptrace(PTRACE_TRACEME, 0, 0, 0) == 0; break;
        case 8: got = system("true") == 0; break;
        case 9: got = chmod(path, 0777) == 0; break;
        case 10: got = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) >= 0; break;
        case 20: { int sum = 0; std::thread t([&] { sum = 7; }); t.join(); got = sum == 7; break; }
        case 21: {
            int threads = 0;
            #pragma omp parallel num_threads(2) reduction(+ : threads)
            threads += 1;
            got = threads == 2;
            break;
        }
        case 22: got = std::thread::hardware_concurrency() > 0; break;
        case 23: got = dlopen("libm.so.6", RTLD_NOW) != nullptr; break;
    }
    got_through[0] = got ? 1 : 2;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("escapes")
    (folder / "escapes.cpp").write_text(ESCAPES)
    command = ["g++", "-w", "-fopenmp", "-shared", "-fPIC", "escapes.cpp", "-o", "escapes.so"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "escapes.so"


def attempt(what: int, number: int = 0) -> Arena:
    """The arena of a problem whose one case is to attempt this."""
    problem = Problem(
        name="escapes",
        family="test",
        summary="",
        language="cpp",
        entry="attempt",
        dimensions=("what", "number"),
        arguments=(
            Argument(name="path", role="input", dtype="int64", shape=("64",)),
            Argument(name="got_through", role="output", dtype="int64", shape=("1",)),
        ),
        cases=(Case(name="attempt", dimensions={"what": what, "number": number}),),
        flops="1",
        bytes="1",
        tolerance=Tolerance(rtol=0.0, atol=0.0),
        oracle_source="",
        seed_source="",
    )
    return Arena.of(problem)


def start(library: Path, sandbox: Sandbox) -> LibraryChild:
    arena = attempt(0)
    child = LibraryChild(sandbox, library.parent, arena, threads=2, cpu_s=5, memory_bytes=1 << 30)
    child.give(library)
    return child


@pytest.fixture(scope="module")
def unsealed(library: Path, whole: Sandbox) -> Iterator[LibraryChild]:
    """Without the seal, an attempt is refused and the process lives to tell."""
    sandbox = replace(whole, mechanisms=whole.mechanisms - {"seccomp.seal"})
    with start(library, sandbox) as child:
        assert child.load(10.0) is None
        yield child


def tried(child: LibraryChild, what: int, path: str = "", number: int = 0) -> bool | Failure:
    """Whether an attempt got through."""
    child.arena = attempt(what, number)
    path_at, answer_at = child.arena.layouts["attempt"].offsets
    child.memory[path_at : path_at + len(path) + 1] = bytearray(path.encode() + b"\0")
    seconds = child.run("attempt", 1, 0, 5.0)
    if isinstance(seconds, Failure):
        return seconds
    return int(child.memory[answer_at : answer_at + 8].view("int64")[0]) == 1


def test_a_kernel_may_use_threads_and_libraries(unsealed: LibraryChild) -> None:
    assert [what for what in (20, 21, 22, 23) if tried(unsealed, what) is not True] == []


def test_a_kernel_gets_at_nothing_else(
    unsealed: LibraryChild, library: Path, tmp_path: Path
) -> None:
    """Even if it were not sealed."""
    (tmp_path / "secret").write_text("secret")
    for path in (tmp_path / "secret", Path("/etc/passwd"), Path("/proc/self/environ")):
        assert tried(unsealed, 0, str(path)) is False, path
    for path in (tmp_path / "new", Path("/tmp/new"), library.parent / "new", library):
        assert tried(unsealed, 1, str(path)) is False, path
    assert tried(unsealed, 2, str(tmp_path / "secret")) is False
    assert tried(unsealed, 5, number=os.getpid()) is False
    assert tried(unsealed, 9, str(library)) is False
    for what in (3, 4, 6, 7, 8, 10):
        assert tried(unsealed, what) is False, what


def test_a_sealed_kernel_may_use_threads_and_dies_of_all_else(
    library: Path, whole: Sandbox
) -> None:
    with start(library, whole) as child:
        assert child.load(10.0) is None
        assert [tried(child, what) for what in (20, 21, 22)] == [True] * 3
    for what in (0, 1, 3, 4, 5, 6, 7, 8, 9, 10):
        with start(library, whole) as child:
            assert child.load(10.0) is None
            failure = tried(child, what, "/dev/null")
            assert isinstance(failure, Failure), what
            assert failure.kind is FailureKind.CHEATING
            assert not child.alive


# ------------------------------------------------------------------------ Python that is sealed

_INTERPRETERS: list[tuple[_seccomp.Profile, _seccomp.Sealing]] = [
    ("measure", "interprets"),
    ("compile", "interprets"),
    ("compile", "asks"),
]
INTERPRETER = """
import errno, json, mmap, os, socket, threading

def main(arguments):
    import _confine, _worker
    policy = _confine.decode(arguments[0])
    attempts, *numbers = _confine.confined(arguments)
    listener = _confine.listen(policy, int(numbers[-1]))
    service = _worker.Service(numbers)
    service.wait()
    if listener is None:
        _confine.seal(policy, service.reply_fd)
    else:
        os.close(listener)

    def tried(text):
        try:
            exec(text, dict(globals()))
        except OSError as error:
            return errno.errorcode.get(error.errno, "?")
        except Exception as error:
            return repr(error)
        return "done"

    before = tried("os.pipe()")

    def answer(*_):
        done = json.dumps({"": before, **{text: tried(text) for text in json.loads(attempts)}})
        note = done.encode() + b"\\0"
        service.memory[-NOTE_BYTES : len(service.memory) - NOTE_BYTES + len(note)] = note
        return 0

    service.serve(answer)
    os._exit(0)
"""
NOTE_BYTES = 4096
MAY = [
    "open(__file__).read()",
    "os.listdir(os.path.dirname(__file__))",
    "os.stat(__file__)",
    "os.code = mmap.mmap(-1, 4096, prot=7); os.code[:1] = b'x'",  # memory to write and to execute
    "t = threading.Thread(target=len, args=('',)); t.start(); t.join()",
    "os.getcwd()",
]
MAY_NOT = {
    "open(__file__, 'a')": "EACCES",
    "open(__file__, 'r+')": "EACCES",
    "open(os.path.dirname(__file__) + '/new', 'w')": "EACCES",
    "os.open(os.path.dirname(__file__), os.O_TMPFILE | os.O_RDWR)": "EACCES",
    "os.fork() or os._exit(0)": "EPERM",
    "os.posix_spawn('/bin/true', ['true'], {})": "EPERM",
    "os.execv('/bin/true', ['true'])": "EPERM",
    "socket.socket()": "EPERM",
    "socket.socketpair()": "EPERM",
    "os.memfd_create('x')": "EPERM",
    "os.pipe()": "EPERM",
    "os.unlink(__file__)": "EPERM",
    "os.mkdir(os.path.dirname(__file__) + '/folder')": "EPERM",
    "os.chmod(__file__, 0o777)": "EPERM",
    "os.symlink('x', os.path.dirname(__file__) + '/link')": "EPERM",
    "os.kill(os.getpid(), 0)": "EPERM",
    "os.setsid()": "EPERM",
}


@pytest.mark.parametrize("alone", [True, False], ids=["the seal alone", "the whole sandbox"])
@pytest.mark.parametrize(("profile", "sealing"), _INTERPRETERS)
def test_a_sealed_interpreter_reads_and_makes_code_and_is_refused_all_else(
    whole: Sandbox,
    tmp_path: Path,
    profile: _seccomp.Profile,
    sealing: _seccomp.Sealing,
    alone: bool,
) -> None:
    """The process lives on: Python modules try things. If it asks, it may until it is loaded."""
    (tmp_path / "package").mkdir()
    script = tmp_path / "package" / "interpreter.py"
    script.write_text(INTERPRETER.replace("NOTE_BYTES", str(NOTE_BYTES)))
    sandbox = replace(whole, mechanisms=frozenset({"seccomp.seal"})) if alone else whole
    asks = sealing == "asks"
    child = Child(
        sandbox,
        f"{script.with_suffix('')}.main",
        [json.dumps([*MAY, *MAY_NOT])],
        Grant(profile, (script.parent,), interprets=True, asks=asks),
        tmp_path,
        words=3 + 2 + 2,
        arena=attempt(0),
        extra_bytes=NOTE_BYTES,
    )
    child.makes_code = True
    with child:
        assert child.load(30.0) is None
        for _ in range(2):
            assert isinstance(child.run("attempt", 1, 0, 30.0), float)
            said = json.loads(child.memory[-NOTE_BYTES:].tobytes().partition(b"\0")[0])
            assert {text: said[text] for text in MAY} == dict.fromkeys(MAY, "done")
            refused = {text: said[text] for text in MAY_NOT}
            if alone:
                assert refused == (dict.fromkeys(MAY_NOT, "ENOSYS") if asks else MAY_NOT)
            else:  # another mechanism may have refused it first
                assert set(refused.values()) <= {"EACCES", "EPERM", "EROFS", "ENOSYS"}
            assert said[""] == ("done" if asks else "EPERM")
        assert child.inspect() is None
        child.makes_code = False
        failure = child.inspect()
        assert failure is not None
        assert "writable and executable" in failure.message
    left = {path.name for path in script.parent.iterdir()}
    assert left <= {"interpreter.py", "__pycache__"}  # by the import, before the seal


def test_a_process_that_asks_is_ended_where_the_parent_may_not_listen(
    whole: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package").mkdir()
    script = tmp_path / "package" / "interpreter.py"
    script.write_text(INTERPRETER.replace("NOTE_BYTES", str(NOTE_BYTES)))
    monkeypatch.setattr(_seal.Listener, "of", lambda _: None)
    child = Child(
        whole,
        f"{script.with_suffix('')}.main",
        ["[]"],
        Grant("compile", (script.parent,), interprets=True, asks=True),
        tmp_path,
        words=3 + 2 + 2,
        arena=attempt(0),
    )
    with child:
        failure = child.load(30.0)
        assert not child.alive
    assert failure is not None
    assert failure.kind is FailureKind.COMPILE_ERROR
    assert "kernel.yama.ptrace_scope" in failure.message


# ------------------------------------------------------------------------------------ compiling


def test_the_compiler_reads_only_system_trees(
    backend: CppBackend, problem: Problem, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("int secret_number = 42;\n")
    embedded = f'asm(".section .rodata\\n.incbin \\"{secret}\\"\\n.text");\n'
    for line in (f'#include "{secret}"\n', embedded, '#include "/etc/passwd"\n'):
        failure = backend.inspect(problem, kernel(line + SEED)).failure
        assert failure is not None
        assert failure.kind is FailureKind.COMPILE_ERROR
        assert "secret_number" not in failure.message
        assert "root:" not in failure.message


def test_the_level_is_part_of_the_measurement(backend: CppBackend, problem: Problem) -> None:
    measurement = backend.measure(problem, kernel(SEED + "// again\nint again;\n"), seed=1)
    assert measurement.sandbox == backend.level == "S3"


def test_a_program_writes_only_in_its_folder(whole: Sandbox, tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
    script = f"echo x > made; echo x > {outside}/made; cat {outside}/../test_file; env > seen"
    (tmp_path / "test_file").write_text("kept from it")
    run = run_tool(whole, ["/bin/sh", "-c", script], inside, 10.0)
    assert run.status == 0
    assert (inside / "made").exists()
    assert not (outside / "made").exists()
    assert "kept from it" not in run.output
    names = {line.partition("=")[0] for line in (inside / "seen").read_text().splitlines()}
    assert names - {"PWD", "SHLVL", "_"} <= {
        *("LANG", "LD_LIBRARY_PATH", "PATH"),
        *("HOME", "LC_ALL", "OMP_NUM_THREADS", "TMPDIR"),
    }


def shell(sandbox: Sandbox, folder: Path, script: str) -> Confined:
    grant = Grant("compile", writable=(folder,))
    return sandbox.start("_confine.run", ["/bin/sh", "-c", script], grant, folder)


def test_a_program_does_not_outlive_its_end(whole: Sandbox, tmp_path: Path) -> None:
    process = shell(whole, tmp_path, "setsid sleep 50 & setsid sleep 50 & exit 3")
    assert process.ended_within(10.0)
    assert process.wait_until_gone()
    assert process.end() == 3


def test_how_a_wrapped_process_died_is_told(whole: Sandbox, tmp_path: Path) -> None:
    for script, status in (("kill -ABRT $$", -6), ("exit 5", 5), ("sleep 50", -9)):
        process = shell(whole, tmp_path, script)
        process.ended_within(0.5)
        assert process.end() == status
        assert not process.alive


def test_a_child_outlives_the_thread_that_started_it(library: Path, whole: Sandbox) -> None:
    started: list[LibraryChild] = []

    def begin() -> None:
        child = start(library, whole)
        assert child.load(10.0) is None
        started.append(child)

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    with started[0] as child:
        assert tried(child, 22) is True


def test_a_program_may_fork_while_a_child_is_started(whole: Sandbox, tmp_path: Path) -> None:
    """A forked process lives on, and must not hold a pipe whose end the parent waits for."""
    enough = threading.Event()

    def start_many() -> None:
        while not enough.is_set():
            shell(whole, tmp_path, "true").end()

    starting = threading.Thread(target=start_many, daemon=True)
    forked = [
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        for _ in range(20)
    ]
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        starting.start()
        for process in forked:
            process.start()
            time.sleep(0.01)
    enough.set()
    starting.join(30)
    stuck = starting.is_alive()
    for process in forked:
        process.kill()
        process.join()
    assert not stuck


# ------------------------------------------------------------------------------- policy and filter


def run_filter(program: bytes, arch: int, number: int, first: int = 0, third: int = 0) -> int:
    """What the program answers, by a small interpreter of classic BPF."""
    data = struct.pack("<IIQ6Q", number, arch, 0, first, 0, third, 0, 0, 0)
    code = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    at = accumulator = 0
    while True:
        kind, if_true, if_false, operand = code[at]
        if kind == 0x06:
            return int(operand)
        if kind == 0x20:
            accumulator = struct.unpack_from("<I", data, operand)[0]
        else:
            holds = {
                0x15: accumulator == operand,
                0x35: accumulator >= operand,
                0x45: bool(accumulator & operand),
            }[kind]
            at += if_true if holds else if_false
        at += 1


ALLOW, KILL, ASK = 0x7FFF0000, 0x80000000, 0x7FC00000


@pytest.mark.parametrize(
    ("machine", "arch", "read", "clone", "socket_", "tgkill", "execve"),
    [
        ("x86_64", 0xC000003E, 0, 56, 41, 234, 59),
        ("aarch64", 0xC00000B7, 63, 220, 198, 131, 221),
    ],
)
def test_the_filter_on_both_machines(
    whole: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    arch: int,
    read: int,
    clone: int,
    socket_: int,
    tgkill: int,
    execve: int,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    measure, own_pid = _seccomp.refusing_filter(whole.mechanisms, "measure")
    compiling, none = _seccomp.refusing_filter(whole.mechanisms, "compile")
    assert none == []
    assert len(own_pid) == 1
    patched = bytearray(measure)
    struct.pack_into("<I", patched, 8 * own_pid[0] + 4, 77)
    measure = bytes(patched)
    thread, process, namespace = 0x3D0F00, 17, 0x10000011
    allowed = [(read, 0), (clone, thread), (tgkill, 77), (462, 0)]
    refused = [(clone, process), (socket_, 2), (tgkill, 78), (execve, 0), (435, 0), (463, 0)]
    assert [run_filter(measure, arch, *call) for call in allowed] == [ALLOW] * len(allowed)
    assert ALLOW not in [run_filter(measure, arch, *call) for call in refused]
    assert run_filter(measure, arch ^ 1, read) != ALLOW
    assert run_filter(measure, arch, read | 1 << 30) != ALLOW
    allowed = [(read, 0), (clone, process), (clone, thread), (execve, 0)]
    assert [run_filter(compiling, arch, *call) for call in allowed] == [ALLOW] * len(allowed)
    assert run_filter(compiling, arch, clone, namespace) != ALLOW
    assert run_filter(compiling, arch, socket_, 2) != ALLOW


@pytest.mark.parametrize(
    ("machine", "arch", "read", "write", "mmap", "mprotect", "clone", "openat", "execve"),
    [
        ("x86_64", 0xC000003E, 0, 1, 9, 10, 56, 257, 59),
        ("aarch64", 0xC00000B7, 63, 64, 222, 226, 220, 56, 221),
    ],
)
def test_the_seal_on_both_machines(
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    arch: int,
    read: int,
    write: int,
    mmap: int,
    mprotect: int,
    clone: int,
    openat: int,
    execve: int,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    seal, blanks = _seccomp.sealing_filter(frozenset({"seccomp.seal"}), "measure")
    assert len(blanks) == 1
    filled = bytearray(seal)
    struct.pack_into("<I", filled, 8 * blanks[0] + 4, 9)
    seal = bytes(filled)
    thread, process = 0x3D0F00, 17
    writable, executable = 3, 5
    allowed = [
        *((read, 0, 0), (write, 1, 0), (write, 2, 0), (write, 9, 0), (clone, thread, 0)),
        *((mmap, 0, writable), (mprotect, 0, 0)),
    ]
    killed = [
        *((write, 0, 0), (write, 3, 0), (write, 8, 0), (clone, process, 0), (openat, 0, 0)),
        *((mmap, 0, executable), (mprotect, 0, executable), (execve, 0, 0), (463, 0, 0)),
        (read | 1 << 30, 0, 0),
    ]
    assert [run_filter(seal, arch, *call) for call in allowed] == [ALLOW] * len(allowed)
    assert [run_filter(seal, arch, *call) for call in killed] == [KILL] * len(killed)
    looks, writes = os.O_RDONLY | os.O_CLOEXEC, os.O_WRONLY | os.O_CLOEXEC
    assert run_filter(seal, arch, openat, 0, looks) == 0x50000 | errno.EACCES
    assert run_filter(seal, arch, openat, 0, writes) == KILL
    assert run_filter(seal, arch ^ 1, read) == KILL


@pytest.mark.parametrize(
    ("machine", "arch", "write", "mmap", "clone", "openat", "execve", "getdents64", "pipe2"),
    [
        ("x86_64", 0xC000003E, 1, 9, 56, 257, 59, 217, 293),
        ("aarch64", 0xC00000B7, 64, 222, 220, 56, 221, 61, 59),
    ],
)
def test_the_seal_of_an_interpreter_on_both_machines(
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    arch: int,
    write: int,
    mmap: int,
    clone: int,
    openat: int,
    execve: int,
    getdents64: int,
    pipe2: int,
) -> None:
    """It refuses, and does not kill. If the process may compile, it asks."""
    monkeypatch.setattr(platform, "machine", lambda: machine)
    mechanisms = frozenset({"seccomp.seal"})
    seal, compiling, asking = (
        _confine.filled(*_seccomp.sealing_filter(mechanisms, profile, sealing), 9)
        for profile, sealing in _INTERPRETERS
    )
    assert seal == compiling
    thread, process = 0x3D0F00, 17
    looks = [os.O_RDONLY, os.O_RDONLY | os.O_CLOEXEC, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK]
    writes = [
        *(os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_CREAT, os.O_RDONLY | os.O_TRUNC),
        *(os.O_RDONLY | os.O_APPEND, os.O_TMPFILE | os.O_RDWR),
    ]
    allowed = [
        *((write, 1, 0), (write, 9, 0), (clone, thread, 0), (mmap, 0, 7), (getdents64, 0, 0)),
        *((openat, 0, flags) for flags in looks),
    ]
    refused = [(write, 3, 0), (write, 8, 0), (clone, process, 0), (execve, 0, 0), (pipe2, 0, 0)]
    assert [run_filter(seal, arch, *call) for call in allowed] == [ALLOW] * len(allowed)
    assert {run_filter(seal, arch, *call) for call in refused} == {0x50000 | errno.EPERM}
    assert {run_filter(seal, arch, openat, 0, flags) for flags in writes} == {
        0x50000 | errno.EACCES
    }
    asked = [*refused, *((openat, 0, flags) for flags in writes)]
    assert [run_filter(asking, arch, *call) for call in allowed] == [ALLOW] * len(allowed)
    assert {run_filter(asking, arch, *call) for call in asked} == {ASK}
    # A listener of its own would be asked in place of the parent.
    assert run_filter(asking, arch, _seccomp.call_number(), 1, 8) == 0x50000 | errno.EPERM
    for program in (seal, asking):
        assert run_filter(program, arch ^ 1, openat, 0, 0) == KILL


def test_a_policy_survives_the_command_line(whole: Sandbox) -> None:
    policy = whole._policy(Grant("compile", cpu_s=3))
    assert _confine.decode(_confine.encode(policy)) == policy
    assert (0, 3, 4) in policy["limits"]


def test_only_chosen_devices_are_shown(whole: Sandbox) -> None:
    assert prove(replace(whole, devices=("/dev/full",))).level == "S3"
    shown = [*replace(whole, devices=("/dev/fuse",))._bwrap(Grant("measure"), Path("/"))]
    assert shown[shown.index("--dev-bind") + 1] == "/dev/fuse"


def test_a_home_is_never_shown_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("opt/gcc/bin", "home/me/bin"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "g++").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "home/me"))
    assert program_tree(tmp_path / "opt/gcc/bin/g++") == tmp_path / "opt/gcc"
    assert program_tree(tmp_path / "home/me/bin/g++") == tmp_path / "home/me/bin"


def test_the_network_is_reachable_from_here() -> None:
    """The control: what the canaries are denied is there to be had."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), 1.0).close()
