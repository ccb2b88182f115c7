"""Worker processes: what they inherit, and that none outlives its pool."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import pytest

from kernelcast.processes import workers


def test_workers_have_one_thread_and_do_not_hear_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with workers(1) as pool:
        assert "OMP_NUM_THREADS" not in os.environ
        assert pool.submit(os.getenv, "OMP_NUM_THREADS").result() == "1"
        assert signal.SIGINT in pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, ()).result()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def interrupted() -> None:
    with workers(1) as pool:
        pool.submit(os.getpid).result()
        pool.submit(time.sleep, 3600)
        raise KeyboardInterrupt


def test_an_exception_ends_the_workers_whatever_they_are_at() -> None:
    before = multiprocessing.active_children()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert multiprocessing.active_children() == before
