from __future__ import annotations

import gc
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelcast.backends import _worker
from kernelcast.backends._child import Child
from kernelcast.backends._sandbox import Grant, Sandbox
from kernelcast.errors import SetupError
from kernelcast.types import Failure, FailureKind

SOURCE = """
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
extern "C" void add(const int64_t* a, int64_t* b, int64_t N, int64_t mode) {
    if (mode == 1) abort();
    if (mode == 2) _exit(0);
    if (mode == 3) for (;;) pause();
    if (mode == 4) for (int fd = 3; fd < 64; ++fd) { int64_t forged = 0; write(fd, &forged, 8); }
    if (mode == 5) { if (fork() == 0) for (;;) pause(); _exit(7); }
    if (mode == 6) b[0] = getenv("KERNELCAST_TEST_KEY") ? 1 : 2;
    if (mode == 7) { volatile char* p = (char*)malloc(8L << 30); b[0] = p ? 1 : 2; }
    if (mode == 8) { FILE* f = tmpfile(); b[0] = f && write(fileno(f), "x", 1) == 1 ? 1 : 2; }
    if (mode == 0) for (int64_t i = 0; i < N; ++i) b[i] = a[i] + 1;
}
"""
STRIDE = 4096
OFFSETS = (0, 2048)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worker")
    (folder / "add.cpp").write_text(SOURCE)
    command = ["g++", "-w", "-shared", "-fPIC", "add.cpp", "-o", "add.so"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "add.so"


def start(library: Path, entry: str = "add", sandbox: Sandbox | None = None) -> Child:
    return Child(
        library,
        entry,
        arrays=2,
        dimensions=2,
        arena_bytes=4 * STRIDE,
        sandbox=sandbox or Sandbox.detect(),
        threads=1,
        cpu_s=5,
        memory_bytes=1 << 30,
    )


@pytest.fixture
def child(library: Path) -> Iterator[Child]:
    with start(library) as child:
        assert child.load(10.0) is None
        yield child


def call(child: Child, mode: int = 0, calls: int = 1, stub: bool = False) -> float | Failure:
    return child.call(OFFSETS, (100, mode), calls=calls, stride=STRIDE, timeout_s=0.7, stub=stub)


def group(pgid: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == pgid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def descendants(pid: int) -> list[int]:
    """A process and its descendants, the youngest last."""
    found = [pid]
    for each in found:
        found += map(int, Path(f"/proc/{each}/task/{each}/children").read_text().split())
    return found


def test_calls_the_kernel_on_each_slot_and_only_when_asked(child: Child) -> None:
    numbers = child.memory.view("int64").reshape(4, -1)
    numbers[:, :100] = [[10 * slot] * 100 for slot in range(4)]
    assert isinstance(call(child, stub=True), float)
    assert not numbers[:, 256:].any()
    seconds = call(child, calls=3)
    assert isinstance(seconds, float)
    assert 0.0 < seconds < 0.7
    assert [set(row[256:356].tolist()) for row in numbers] == [{1}, {11}, {21}, {0}]


@pytest.mark.parametrize(
    ("mode", "kind", "words"),
    [
        (1, FailureKind.CRASH, "SIGABRT"),
        (2, FailureKind.CRASH, "status 0 without answering"),
        (3, FailureKind.TIMEOUT, "no answer within 0.70 s"),
        (4, FailureKind.CRASH, "reply pipe"),
    ],
)
def test_says_how_a_child_ended(child: Child, mode: int, kind: FailureKind, words: str) -> None:
    outcome = call(child, mode)
    assert isinstance(outcome, Failure)
    assert outcome.kind is kind
    assert words in outcome.message
    assert not child.alive
    assert isinstance(call(child), Failure)


def test_no_grandchild_is_left(child: Child) -> None:
    assert isinstance(call(child, mode=5), Failure)
    child.close()
    deadline = time.monotonic() + 5.0
    while group(child.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert group(child.pid) == []


def test_environment_memory_and_files_are_limited(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELCAST_TEST_KEY", "secret")
    with start(library) as child:
        assert child.load(10.0) is None
        answer = child.memory.view("int64")[256:257]
        for mode in (6, 7, 8):
            answer[:] = 0
            assert isinstance(call(child, mode), float)
            assert answer[0] == 2
        limits = Path(f"/proc/{descendants(child.pid)[-1]}/limits").read_text()
    assert "Max core file size        0 " in limits
    assert "Max file size             0 " in limits
    assert "Max cpu time              5 " in limits


def test_a_library_that_does_not_load_is_a_compile_error(library: Path) -> None:
    for path, entry in ((library, "absent"), (library.with_name("add.cpp"), "add")):
        with start(path, entry) as child:
            failure = child.load(10.0)
        assert failure is not None
        assert failure.kind is FailureKind.COMPILE_ERROR


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


def test_serves_until_the_pipe_is_closed(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same loop in this process, unconfined."""
    monkeypatch.setattr(gc, "disable", lambda: None)
    memory = os.memfd_create("test")
    os.ftruncate(memory, STRIDE)
    request_read, request_write = os.pipe()
    reply_read, reply_write = os.pipe()
    fds = (os.dup(memory), request_read, reply_write)
    serving = threading.Thread(target=_worker.serve, args=(str(library), "add", 2, 2, *fds))
    serving.start()
    assert os.read(reply_read, 8) == struct.pack("<q", _worker.CONFINED)
    assert os.read(reply_read, 8) == struct.pack("<q", _worker.LOADED)
    os.write(request_write, struct.pack("<8q", 42, 0, 1, STRIDE, *OFFSETS, 100, 0))
    assert os.read(reply_read, 8) == struct.pack("<q", 42)
    assert os.pread(memory, 16, OFFSETS[1]) == struct.pack("<2q", 1, 1)
    os.close(request_write)
    serving.join(10)
    assert not serving.is_alive()
    for fd in (memory, request_read, reply_read, reply_write):
        os.close(fd)


def test_a_sandbox_that_does_not_come_into_force_is_nobodys_crash(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {**Sandbox.detect()._policy(Grant("measure")), "seccomp_number": -1}
    monkeypatch.setattr(Sandbox, "_policy", lambda *_: broken)
    with start(library) as child, pytest.raises(SetupError, match="kernelcast doctor"):
        child.load(10.0)
