"""Rows of other devices as what the tree forecaster starts from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from kernelcast.dataset.keys import device_group
from kernelcast.dataset.rows import Rows, concatenate, read_rows
from kernelcast.forecasters.trees import DeviceTimes, TreesForecaster
from kernelcast.types import Device, Problem

_COLUMNS = ("problem", "device", "candidate_parameters", "runtime_s", "status")


class History:
    """Times of tuned kernels by problem and device; what was measured on a device itself is not
    history there.
    """

    def __init__(self, rows: Rows) -> None:
        times: dict[tuple[str, str], dict[str, list[float | None]]] = {}
        for problem, device, key, runtime_s, status in zip(
            *(rows[name].to_pylist() for name in _COLUMNS), strict=True
        ):
            failed = status not in ("ok", "reference")
            if key is not None and (failed or runtime_s is not None):
                found = times.setdefault((problem, device), {}).setdefault(key, [])
                found.append(None if failed else runtime_s)
        self._times = {
            place: {key: _typical(each) for key, each in found.items()}
            for place, found in times.items()
        }

    def __call__(self, problem: Problem, device: Device) -> list[DeviceTimes]:
        """What is known of this problem on other devices."""
        here = device_group(device.name)
        return [
            DeviceTimes(device=name, log2_runtime=found, same_vendor=same_vendor(name, here))
            for (computed, name), found in self._times.items()
            if computed == problem.name and device_group(name) != here
        ]


def open_trees(history: Sequence[str] = (), model: str | None = None) -> TreesForecaster:
    """The tree forecaster; `history` are files of rows, `model` a file that training wrote."""
    elsewhere = None
    if history:
        tables = [read_rows(path, columns=_COLUMNS) for path in history]
        elsewhere = History(concatenate(tables))
    return TreesForecaster(elsewhere=elsewhere, model=model)


def _typical(runs: Sequence[float | None]) -> float | None:
    """Log2 of the median time of those that ran."""
    ran = [each for each in runs if each is not None]
    return math.log2(median(ran)) if ran else None


def same_vendor(one: str, other: str) -> bool:
    """Whether two devices, by their names, are of one maker."""
    return _vendor(one) == _vendor(other)


def _vendor(device: str) -> str:
    """AMD's names are known; whatever else there is, is taken for NVIDIA's."""
    group = device_group(device)
    return "amd" if device.startswith("AMD") or group.startswith(("MI", "W", "RX ")) else "nvidia"
