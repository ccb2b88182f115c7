"""Pytest's hooks of the gate: which test begins, which is tried twice, which skip is a failure."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from _pytest.terminal import TerminalReporter

DATA = Path(os.environ.get("KERNELCAST_DATA", Path(__file__).parents[2] / "shared" / "data"))
"""The measured data, which is not part of the repository."""

EXPECTED_SKIPS = (
    "needs an NVIDIA GPU",
    "there is a GPU here",
    "needs root",
    "needs an environment of its own",
)
"""How the reasons begin for which the gate may skip a test, and those about `DATA` without it."""

STARVED = 0.2
"""Of the time of a test: if the machine lacked cores for longer, a failure is tried once more."""
SECOND_TRY = "tried twice, for the machine was starved"

NEIGHBOURS = 5
"""Slow tests in a row that one worker is given: they share a backend, or a measured seed kernel."""


def gate_runs(count: int, parameters: Iterable[Any]) -> list[Any]:
    """Parameters of which the gate runs so many, and `make measure` the others."""
    return [
        pytest.param(
            *(parameter if isinstance(parameter, tuple) else (parameter,)),
            marks=() if number < count else pytest.mark.full,
        )
        for number, parameter in enumerate(parameters)
    ]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each of several workers begin with long tests.

    Each worker is given one run of the list at first, and steals from the others' ends later. The
    first worker alone begins with those that need the installed wheel, which it installs.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        installed = [item for item in items if "first_ten_minutes" in item.nodeid]
        others = [item for item in items if item not in installed]
        slow = [item for item in others if item.get_closest_marker("slow")]
        rest = [item for item in others if not item.get_closest_marker("slow")]
        size = math.ceil(len(rest) / workers)  # in one piece: a module's fixtures are made once
        shares = [
            [item for n, item in enumerate(slow) if n // NEIGHBOURS % workers == worker]
            + rest[worker * size : (worker + 1) * size]
            for worker in range(workers)
        ]
        items[:] = [*installed, *(item for share in shares for item in share)]


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A test that measures and fails while the machine is starved is tried once more."""
    if item.get_closest_marker("measures") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    began_s, lost_before_s = time.monotonic(), lost_s()
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    starved = lost_s() - lost_before_s > STARVED * (time.monotonic() - began_s)
    if starved and any(report.failed for report in reports):
        failures = [report.longreprtext for report in reports if report.failed]
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        reports[0].user_properties.append((SECOND_TRY, failures[0]))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def lost_s() -> float:
    """For how long, since it started, the machine lacked cores for what was ready to run."""
    stolen = int(Path("/proc/stat").read_text().split(maxsplit=9)[8])
    stolen_s = stolen / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
    pressure = Path("/proc/pressure/cpu")
    if not pressure.exists():
        return time.monotonic()  # it cannot be told: a second try is due
    _, waited_us = pressure.read_text().splitlines()[0].split("total=")
    return stolen_s + int(waited_us) / 1e6


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Show the first failure of each test that was tried twice."""
    for report in terminalreporter.stats.get("", []):
        for name, failure in report.user_properties:
            if name == SECOND_TRY:
                terminalreporter.section(f"{report.nodeid}: {SECOND_TRY}")
                terminalreporter.line(failure)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI an unexpected skip fails the run: a missing package must not hide tests."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("CI") or reporter is None:
        return
    reasons = {report.longrepr[2] for report in reporter.stats.get("skipped", [])}
    unexpected = [reason for reason in sorted(reasons) if not is_expected_skip(reason)]
    if unexpected:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.section("unexpected skips: install what they need, or list them in tests/hooks.py")
        for reason in unexpected:
            reporter.line(reason)


def is_expected_skip(reason: str) -> bool:
    """Whether the gate may skip a test for this reason."""
    reason = reason.removeprefix("Skipped: ")
    return reason.startswith(EXPECTED_SKIPS) or ("measured data" in reason and not DATA.is_dir())
