"""`RayFarm` on a real cluster, which runs in namespaces of its own: see `on_ray.py`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kernelcast.errors import SetupError
from kernelcast.farm.ray import RayFarm
from kernelcast.testing import SyntheticBackend
from tests.own_network import run_inside

ROOT = Path(__file__).parents[2]


def run_in_own_network(file: str, environment: dict[str, str] | None = None) -> None:
    """Run the tests of a file in namespaces of their own."""
    if os.getuid() != 0:
        pytest.skip("needs root, to start the cluster in a network of its own")
    pytest_here = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [*pytest_here, f"--rootdir={ROOT}", str(ROOT / file)]
    assert run_inside(command, environment) == 0


@pytest.mark.slow
@pytest.mark.longest
def test_on_a_cluster_of_two_nodes() -> None:
    # The user's home may have a token, which Ray would use.
    run_in_own_network("tests/farm/on_ray.py", {"RAY_AUTH_MODE": "disabled"})


def test_without_a_cluster_the_command_is_named() -> None:
    with pytest.raises(SetupError, match=r"no Ray cluster at .*kernelcast farm up"):
        RayFarm(SyntheticBackend(), address="127.0.0.1:9")


def test_a_farm_has_no_negative_number_of_slots() -> None:
    with pytest.raises(ValueError, match="0 slots or more"):
        RayFarm(SyntheticBackend(), slots=-1)
