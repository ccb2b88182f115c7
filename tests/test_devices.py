from __future__ import annotations

import os
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from kernelcast.devices import catalogue, detect_cpu, find_device, named, same_vendor
from kernelcast.errors import SetupError


def test_detects_this_cpu() -> None:
    device = detect_cpu()
    assert device.kind == "cpu"
    assert device.cores == len(os.sched_getaffinity(0))
    assert 1e8 < device.clock_hz < 1e10
    assert device.peak_flops["float32"] == 2 * device.peak_flops["float64"]
    assert device.peak_flops["float32"] >= 8 * device.cores * device.clock_hz
    assert "assume" in device.source


@pytest.mark.parametrize(
    ("cpuinfo", "name", "clock_hz", "flops_per_cycle"),
    [
        ("model name\t: Fast\ncpu MHz\t\t: 3000.0\nflags\t: avx avx2 fma\n\nx: y", "Fast", 3e9, 32),
        ("model name\t: Wide\ncpu MHz\t\t: 2000.0\nflags\t: avx2 fma avx512f", "Wide", 2e9, 64),
        ("model name\t: Old\ncpu MHz\t\t: 1000.0\nflags\t: sse2", "Old", 1e9, 8),
        ("processor\t: 0\nFeatures\t: fp asimd", None, 2e9, 16),
        (None, None, 2e9, 8),
    ],
)
def test_reads_cpuinfo(
    monkeypatch: pytest.MonkeyPatch,
    cpuinfo: str | None,
    name: str | None,
    clock_hz: float,
    flops_per_cycle: int,
) -> None:
    def read_text(path: Path) -> str:
        if str(path) == "/proc/cpuinfo" and cpuinfo is not None:
            return cpuinfo
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", read_text)
    device = detect_cpu()
    assert device.name == name or (name is None and device.name)
    assert device.clock_hz == clock_hz
    assert device.peak_flops["float32"] == device.cores * clock_hz * flops_per_cycle


STATED = tomllib.loads(files("kernelcast").joinpath("devices.toml").read_text())


@pytest.mark.parametrize("name", sorted(set(STATED) - {"architecture"}))
def test_catalogue_agrees_with_itself(name: str) -> None:
    """A data-sheet peak is units x lanes x 2 x clock: a slip in one number shows."""
    device, lanes = catalogue()[name], STATED[name]["lanes"]
    assert device.peak_flops["float32"] == pytest.approx(
        device.cores * lanes * 2 * device.clock_hz, rel=0.012
    )
    ratio = device.peak_flops["float32"] / device.peak_flops["float64"]
    assert min(abs(ratio - 2**power) / 2**power for power in range(7)) < 0.03
    assert device.peak_flops["float16"] > device.peak_flops["float32"]
    assert device.threads_per_core % device.warp == 0
    assert device.shared_bytes_per_block <= device.shared_bytes_per_core
    assert device.source
    assert device.kind == "gpu"


def test_finds_devices_by_name_and_lists_them() -> None:
    assert find_device("H100-SXM5").bandwidth_bytes_s == 3.35e12
    assert find_device("cpu") == detect_cpu()
    with pytest.raises(SetupError, match="cpu, A10, A100-PCIE-40GB"):
        find_device("H1000")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("NVIDIA A100-PCIE-40GB", "RTX-3090", True),
        ("AMD Instinct MI250X", "W6600", True),
        ("MI350X", "RTX 4090", False),
        ("A6000", "AMD Radeon PRO W7800", False),
        ("Intel Arc A770", "A100", False),
        ("my accelerator", "A100", True),
        (None, "MI50", True),
    ],
)
def test_devices_of_two_vendors_are_told_apart_by_their_names(
    one: str | None, other: str, same: bool
) -> None:
    assert same_vendor(one, other) == same_vendor(other, one) == same


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ("RTX 4090", "RTX-4090"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX-2080-Ti"),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", "RTX-3060-Laptop"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"),
        ("NVIDIA A100", "A100-SXM4-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5"),
        ("AMD Radeon PRO W7800", "W7800"),
        ("NVIDIA H100 PCIe", None),  # fewer SMs than the SXM board
        ("NVIDIA RTX PRO 6000 Blackwell", None),
        ("NVIDIA L40", None),
        ("(none)", None),
    ],
)
def test_what_drivers_call_a_device_names_it(said: str, known: str | None) -> None:
    device = named(said)
    assert (device and device.name) == known


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_each_device_has_its_own_name(name: str) -> None:
    assert named(name) is catalogue()[name]
