"""Rows of other devices as prior knowledge of the tree forecaster."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from kernelcast.dataset.keys import device_group
from kernelcast.dataset.rows import Rows, concatenate, read_rows
from kernelcast.forecasters.trees import DeviceTimes, TreesForecaster
from kernelcast.types import Device, Problem

_COLUMNS = ("problem", "device", "candidate_parameters", "runtime_s", "status")


class History:
    """Times of tuned kernels on other devices than the one asked about.

    `log2_runtime` holds log2 seconds by (problem, device) and canonical parameters, None where
    the configuration failed.
    """

    def __init__(self, log2_runtime: Mapping[tuple[str, str], Mapping[str, float | None]]) -> None:
        self._log2_runtime = log2_runtime

    @classmethod
    def of_rows(cls, rows: Rows) -> History:
        """The history in a table; a configuration measured several times has its median time."""
        times: defaultdict[tuple[str, str], defaultdict[str, list[float]]]
        times = defaultdict(lambda: defaultdict(list))
        for problem, device, key, runtime_s, status in zip(
            *(rows[name].to_pylist() for name in _COLUMNS), strict=True
        ):
            if key is None:
                continue
            if status not in ("ok", "reference"):
                times[problem, device].setdefault(key, [])
            elif runtime_s is not None:
                times[problem, device][key].append(runtime_s)
        return cls(
            {
                place: {
                    key: math.log2(median(runs)) if runs else None for key, runs in by_key.items()
                }
                for place, by_key in times.items()
            }
        )

    def __call__(self, problem: Problem, device: Device) -> list[DeviceTimes]:
        """Times of this problem on other devices."""
        return [
            DeviceTimes(
                device=name,
                log2_runtime=times,
                same_vendor=_vendor(name) == _vendor(device.name),
            )
            for (known, name), times in self._log2_runtime.items()
            if known == problem.name and device_group(name) != device_group(device.name)
        ]


def open_trees(history: Sequence[str] = (), model: str | None = None) -> TreesForecaster:
    """The tree forecaster; `history` are files of rows, `model` a file that training wrote."""
    elsewhere = None
    if history:
        tables = [read_rows(path, columns=_COLUMNS) for path in history]
        elsewhere = History.of_rows(concatenate(tables))
    return TreesForecaster(elsewhere=elsewhere, model=model)


def _vendor(device: str) -> str:
    """Vendor of a device by its name: AMD's names are known, others count as NVIDIA's."""
    group = device_group(device)
    return "amd" if device.startswith("AMD") or group.startswith(("MI", "W", "RX ")) else "nvidia"
