"""The devices that kernelcast knows by name, and detection of this machine's CPU.

Peaks are nominal. They order candidates by their roofline and describe the hardware to a model;
no speedup is computed from them.
"""

from __future__ import annotations

import os
import platform
import re
import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from kernelcast.dtypes import dtype_of
from kernelcast.errors import SetupError
from kernelcast.expression import evaluate
from kernelcast.types import Device, Problem

# Flops a core and cycle in float32, nominal: lanes x 2 (multiply and add) x 2 units.
_FLOPS_PER_CYCLE = (
    ({"avx512f"}, 64, "AVX-512, two FMA units"),
    ({"avx2", "fma"}, 32, "AVX2, two FMA units"),
    ({"avx"}, 16, "AVX, one multiply and one add unit"),
    ({"asimd"}, 16, "NEON, two FMA units"),
)
_BASELINE = (8, "128-bit vectors, one multiply and one add unit")
_BANDWIDTH_PER_CORE_BYTES_S = 10e9
_BANDWIDTH_LIMIT_BYTES_S = 200e9
_FALLBACK_CLOCK_HZ = 2e9
_MAKERS_WORDS = frozenset(
    ("nvidia", "geforce", "tesla", "quadro", "amd", "instinct", "radeon", "pro", "gpu")
)
_BOARD_WORDS = {"form": r"(pcie|sxm)\d?", "memory": r"(\d+)gb", "kind": r"(hbm)\d?e?"}
_VENDOR_WORDS = {
    "nvidia": "nvidia|geforce|quadro|tesla|titan|rtx|gtx",
    "amd": r"amd|radeon|instinct|mi\d+\w?",
    "intel": "intel|arc|xeon",
}


def detect_cpu() -> Device:
    """Detect the CPU that this process may use; `source` states what its peaks assume."""
    info = _cpuinfo()
    cores = len(os.sched_getaffinity(0))
    clock_hz, clock_source = _clock(info)
    flags = set((info.get("flags") or info.get("Features") or "").split())
    per_cycle, units = next(
        ((flops, units) for needed, flops, units in _FLOPS_PER_CYCLE if needed <= flags), _BASELINE
    )
    peak = cores * clock_hz * per_cycle
    return Device(
        name=info.get("model name") or platform.processor() or platform.machine(),
        kind="cpu",
        cores=cores,
        clock_hz=clock_hz,
        peak_flops={"float32": peak, "float64": peak / 2},
        bandwidth_bytes_s=min(cores * _BANDWIDTH_PER_CORE_BYTES_S, _BANDWIDTH_LIMIT_BYTES_S),
        source=(
            f"detected; clock from {clock_source}; peaks assume {units} on {cores} cores; "
            "bandwidth is assumed: 10 GB/s a core, at most 200 GB/s"
        ),
    )


def _cpuinfo() -> dict[str, str]:
    """The fields of the first processor."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _clock(info: dict[str, str]) -> tuple[float, str]:
    highest = Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    try:
        return 1e3 * float(highest.read_text()), "cpufreq's maximum"
    except (OSError, ValueError):
        pass
    try:
        return 1e6 * float(info["cpu MHz"]), "/proc/cpuinfo"
    except (KeyError, ValueError):
        return _FALLBACK_CLOCK_HZ, "an assumption of 2 GHz"


@cache
def _tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads(files("kernelcast").joinpath("devices.toml").read_text())


@cache
def catalogue() -> dict[str, Device]:
    """The known devices by name, read from `devices.toml`."""
    devices = {name: entry for name, entry in _tables().items() if name != "architecture"}
    return {name: _from_toml(name, dict(entry)) for name, entry in devices.items()}


def architecture(target: str) -> dict[str, float] | None:
    """What a core of an architecture (sm_80, ...) does in a cycle; None if that is not known."""
    return _tables()["architecture"].get(target.rstrip("af"))


def _from_toml(name: str, entry: dict[str, Any]) -> Device:
    del entry["lanes"]  # serves to check the other numbers
    peaks = entry.pop("peak_tflops")
    return Device(
        name=name,
        kind="gpu",
        clock_hz=entry.pop("clock_ghz") * 1e9,
        peak_flops={dtype: peak * 1e12 for dtype, peak in peaks.items()},
        bandwidth_bytes_s=entry.pop("bandwidth_gb_s") * 1e9,
        cache_bytes=int(entry.pop("cache_mb") * 2**20),
        shared_bytes_per_core=entry.pop("shared_kb_per_core") * 2**10,
        shared_bytes_per_block=entry.pop("shared_kb_per_block") * 2**10,
        **entry,
    )


def find_device(name: str) -> Device:
    """Find a device by its name or an unambiguous beginning of it; "cpu" is this machine's CPU.

    Spaces and hyphens are the same: "RTX 4090" is RTX-4090.

    Raises:
        SetupError: no device, or more than one, has that name.
    """
    if name.lower() == "cpu":
        return detect_cpu()
    known = catalogue()
    if name in known:
        return known[name]
    wanted = name.lower().replace(" ", "-")
    matches = [full for full in known if full.lower().replace(" ", "-").startswith(wanted)]
    if len(matches) > 1:
        raise SetupError(f"{name!r} may be {' or '.join(matches)}: name the one that is meant")
    if not matches:
        raise SetupError(f"unknown device {name!r}; known: cpu, {', '.join(sorted(known))}")
    return known[matches[0]]


def named(name: str) -> Device | None:
    """Return the device of the catalogue that drivers and files call so; None if none is.

    They add a vendor, and may leave out the form of the board or the size of its memory. A form or
    a size that they state is never another one.
    """
    model, board = _read_name(name)
    fitting = []
    for device in catalogue().values():
        known_model, known_board = _read_name(device.name)
        stated = board.keys() & known_board.keys()
        if model == known_model and all(board[what] == known_board[what] for what in stated):
            fitting.append(device)
    return fitting[0] if fitting else None


def _read_name(name: str) -> tuple[frozenset[str], dict[str, str]]:
    """The words that name a model, and its form and memory where they are stated."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    board = {}
    for what, pattern in _BOARD_WORDS.items():
        for word in words:
            if match := re.fullmatch(pattern, word):
                board[what] = match[1]
    model = {
        word
        for word in words
        if not any(re.fullmatch(pattern, word) for pattern in _BOARD_WORDS.values())
    }
    return frozenset(model - _MAKERS_WORDS), board


def same_vendor(device: str | None, other: str | None) -> bool:
    """Return False if both devices are known by their names, and are of two vendors."""
    vendors = {_vendor(name) for name in (device, other) if name is not None} - {None}
    return len(vendors) < 2


@cache
def _vendor(device: str) -> str | None:
    """Return the vendor that a name states, or the catalogue's; None if neither knows it."""
    words = set(re.findall(r"[a-z0-9]+", device.lower()))
    for vendor, pattern in _VENDOR_WORDS.items():
        if any(re.fullmatch(pattern, word) for word in words):
            return vendor
    for name, known in catalogue().items():
        # The word of a name that has a digit is the model: A100 of A100-PCIE-40GB.
        model = re.search(r"[a-z]*\d+[a-z]*", name.lower())
        if model is not None and model[0] in words:
            return "amd" if known.target.startswith("gfx") else "nvidia"
    return None


def roofline_s(problem: Problem, device: Device) -> float | None:
    """Lower bound of a call's runtime by the device's nominal peaks, geometric mean over cases.

    The peak is that of the floating-point inputs, or else outputs: a sum of narrow numbers that is
    written as float32 runs at the peak of the narrow ones.

    None if the problem states no timed case, no work, or no such type, or if a peak is not known.
    """
    floats = [argument for argument in problem.arguments if dtype_of(argument.dtype).is_float]
    inputs = [argument for argument in floats if argument.role == "input"]
    peaks = [device.peak_flops.get(argument.dtype, 0.0) for argument in inputs or floats]
    if not peaks or min(peaks) == 0.0 or not problem.timed_cases:
        return None
    bounds = [
        max(
            evaluate(problem.flops, case.dimensions) / min(peaks),
            evaluate(problem.bytes, case.dimensions) / device.bandwidth_bytes_s,
        )
        for case in problem.timed_cases
    ]
    return geometric_mean(bounds) if min(bounds) > 0 else None
