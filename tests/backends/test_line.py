"""The line to a confined process: what it leaves open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelcast.backends._line import Line
from kernelcast.backends._sandbox import Grant, Sandbox


def test_a_process_that_does_not_start_leaves_nothing_open(tmp_path: Path) -> None:
    line = Line(4096)
    descriptors = {line.request_fd, line.reply_fd, *line._passed}
    assert len([os.fstat(fd) for fd in descriptors]) == 5
    with pytest.raises(OSError, match="missing"):
        line.start(
            Sandbox(frozenset()), "_worker.main", [], Grant("measure"), tmp_path / "missing", {}
        )
    for fd in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
