"""How long a process is waited for: on real processes that compute, sleep or are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernelcast.backends import _patience
from kernelcast.backends._patience import Patience, cpu_clock, innermost
from kernelcast.backends._proof import detect_sandbox
from kernelcast.backends._sandbox import Grant

LONG_S = 1000.0  # no machine is so slow that a process computes for nine tenths of this in a test


@contextmanager
def process(code: str) -> Iterator[int]:
    """A Python process that has begun to run this."""
    command = [sys.executable, "-I", "-S", "-c", f"print(flush=True); {code}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield child.pid
        finally:
            child.kill()


def wait_for_state(pid: int, state: str) -> None:
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != state:
        time.sleep(0.001)


def test_a_process_that_wants_a_core_is_waited_for_until_it_has_computed_for_the_limit() -> None:
    with process("exec('while True: pass')") as pid:
        patience = Patience(pid, LONG_S)
        assert 0.0 < patience.left_s() <= LONG_S
        assert patience.starved
        while time.clock_gettime(cpu_clock(pid)) < 0.1:
            time.sleep(0.001)
        patience = Patience(pid, 0.1)
        assert patience.left_s() == 0.0
        assert not patience.starved
        assert patience.computed_s >= 0.1
        assert Patience(pid, 0.1, cpu_before_s=LONG_S).left_s() > 0.0  # that was before


def test_a_process_that_sleeps_is_not_waited_for() -> None:
    with process("import time; time.sleep(600)") as pid:
        wait_for_state(pid, "S")
        patience = Patience(pid, LONG_S)
        assert patience.left_s() == 0.0
        assert not patience.starved


def test_one_thread_that_wants_a_core_is_enough() -> None:
    code = "import _thread; _thread.start_new_thread(lambda: exec('while True: pass'), ()); "
    with process(code + "import time; time.sleep(600)") as pid:
        wait_for_state(pid, "S")
        assert Patience(pid, LONG_S).left_s() > 0.0


def test_patience_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with process("import time; time.sleep(600)") as pid:
        os.kill(pid, signal.SIGSTOP)
        wait_for_state(pid, "T")
        assert Patience(pid, LONG_S).left_s() > 0.0
        past = Patience(pid, LONG_S, deadline=time.perf_counter())
        assert past.left_s() == 0.0
        assert past.starved
        monkeypatch.setattr(_patience, "_MOST_LIMITS", 1)
        impatient = Patience(pid, LONG_S)
        assert impatient.left_s() == 0.0
        assert impatient.starved


def test_a_process_that_can_stop_itself_is_not_waited_for() -> None:
    with process("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)") as pid:
        wait_for_state(pid, "T")
        assert Patience(pid, LONG_S).left_s() > 0.0
        assert Patience(pid, LONG_S, sealed=False).left_s() == 0.0


def test_a_process_that_is_gone_is_not_waited_for() -> None:
    with process("pass") as pid:
        pass
    assert Patience(pid, LONG_S).left_s() == 0.0


def test_a_confined_process_that_gets_no_core_is_given_time_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler on a busy machine, say."""
    look = Patience.left_s
    looks = []

    def and_continue(patience: Patience) -> float:
        looks.append(look(patience))
        os.write(pipe, b"end\n")
        os.kill(worker, signal.SIGCONT)
        return looks[-1]

    monkeypatch.setattr(Patience, "left_s", and_continue)
    monkeypatch.setattr("kernelcast.backends._patience._MOST_LIMITS", 1000)
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)  # the process waits for what is written to it
    sandbox = detect_sandbox()
    sandbox.own(tmp_path)
    grant = Grant("compile", writable=(tmp_path,), memory_bytes=1 << 30, cpu_s=60)
    command = ["/bin/sh", "-c", "echo > begun; read line < pipe"]
    with (tmp_path / "messages").open("wb") as messages:
        confined = sandbox.start("_confine.run", command, grant, tmp_path, output=messages)
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        worker = innermost(confined.pid)
        os.kill(worker, signal.SIGSTOP)
        ended = confined.ended_within(2.0)
        status = confined.end()
    os.close(pipe)
    assert ended
    assert status == 0
    assert looks[0] > 0.0
