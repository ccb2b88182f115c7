"""What the bench of searches with estimates gives a search, and how it sums them up."""

from __future__ import annotations

import numpy as np
import pytest

from tests.hooks import DATA

pytest.importorskip("pyarrow", reason="needs the extra: pip install 'kernelcast[data]'")

import emulator_online
from _data import Configuration, Space
from kernelcast.canonical import canonical_parameters

needs_data = pytest.mark.skipif(
    not DATA.is_dir(),
    reason=f"needs the measured data in {DATA}: set KERNELCAST_DATA to its folder",
)


@pytest.fixture
def space() -> Space:
    """A space of 400 configurations, half of which the template serves; a tenth of those fails."""
    configurations: tuple[Configuration, ...] = tuple(
        {"block_size_x": 16 * size, "use_shmem": served}
        for size in range(1, 201)
        for served in (0, 1)
    )
    fails = [
        one["use_shmem"] == 1 and int(one["block_size_x"]) % 160 == 0 for one in configurations
    ]
    return Space(
        problem="hub/convolution_milo(4096x4096,15x15)",
        family="convolution",
        gpu="NVIDIA A100-PCIE-40GB",
        vendor="nvidia",
        parameters=("block_size_x", "use_shmem"),
        configurations=configurations,
        keys=tuple(map(canonical_parameters, configurations)),
        runtime_ms=np.where(fails, np.inf, 1.0),
        device_s=None,
    )


@needs_data
def test_only_served_configurations_have_estimates(space: Space) -> None:
    keys = dict.fromkeys(space.keys, -10.0)
    estimates = emulator_online.estimates_of(space, keys)
    served = np.array([one["use_shmem"] == 1 for one in space.configurations])
    assert (np.isfinite(estimates) == served).all()


@needs_data
def test_a_seed_draws_as_many_as_would_have_run(space: Space) -> None:
    estimates = np.full(len(space.keys), np.nan)
    estimates[:300] = np.linspace(-12.0, -8.0, 300)
    one, again, other = (emulator_online.drawn(space, estimates, 100, seed) for seed in (0, 0, 1))
    assert one == again
    assert one.keys() != other.keys()
    assert 30 < len(one) < 60  # of 100, a little less than half is served and runs
    stated = dict(zip(space.keys, 2.0**estimates, strict=True))
    assert one == {key: pytest.approx(stated[key]) for key in one}


def test_the_space_that_loses_most_is_named() -> None:
    flat = [0.5] * 25
    curves = {
        "good": {"cold": flat, "emulated": [0.75] * 25},
        "bad": {"cold": flat, "emulated": [0.25] * 25},
    }
    result = emulator_online.summary(curves)
    assert result["cold"] == result["emulated"] == {"5": 0.5, "10": 0.5, "25": 0.5}
    assert result["least_gain"]["25"] == -0.25
    assert result["least_gain_in"]["25"] == "bad"
    assert result["spaces_below"]["25"] == 1
