"""Versions that an adapter is not tested with are refused with a sentence."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from kernelcast import MissingExtra, SetupError, integrations
from kernelcast.integrations._package import check_version

ADAPTERS = sorted(Path(integrations.__path__[0]).glob("[a-z]*.py"))


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda path: path.stem)
def test_an_adapter_is_short(adapter: Path) -> None:
    """What it lacks is made public in the part that has it."""
    assert len(adapter.read_text().splitlines()) <= 150


def around(package: str, by: int) -> str:
    major, *_ = version(package).split(".")
    return str(int(major) + by)


@pytest.mark.parametrize(("lowest", "newest"), [(0, 0), (-1, 0), (0, 1)])
def test_a_version_in_the_range_is_taken(lowest: int, newest: int) -> None:
    check_version("numpy", around("numpy", lowest), around("numpy", newest))


@pytest.mark.parametrize(("lowest", "newest"), [(1, 2), (-2, -1)])
def test_any_other_is_refused_and_the_message_says_what_to_install(
    lowest: int, newest: int
) -> None:
    low, high = around("numpy", lowest), around("numpy", newest)
    with pytest.raises(SetupError, match=f"works with numpy {low} to {high}, and this is"):
        check_version("numpy", low, high)


def test_a_package_that_is_not_there_is_named() -> None:
    with pytest.raises(MissingExtra, match="pip install 'no_such_package'"):
        check_version("no_such_package", "1", "2")
