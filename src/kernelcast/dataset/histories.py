"""Times on other devices as prior knowledge: of the tree forecaster and of a tuner."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

from kernelcast.dataset.keys import device_group, problem_group
from kernelcast.dataset.pools import read_space
from kernelcast.dataset.rows import Rows, concatenate, read_rows
from kernelcast.devices import same_vendor
from kernelcast.errors import SetupError
from kernelcast.forecasters.trees import DeviceTimes, TreesForecaster
from kernelcast.proposers.tuner import TunerProposer
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

    def seconds(
        self, problem: str | None, names: Collection[str]
    ) -> dict[str, dict[str, float | None]]:
        """Times of one tuned kernel at any size, by device; None where a configuration failed.

        Args:
            problem: name of the problem; None is any.
            names: the parameters that a configuration must have.
        """
        seconds: dict[str, dict[str, float | None]] = {}
        for (known, device), times in self._log2_runtime.items():
            kept = {
                key: None if log2_runtime is None else 2.0**log2_runtime
                for key, log2_runtime in times.items()
                if (problem is None or problem_group(known) == problem_group(problem))
                and json.loads(key).keys() == set(names)
            }
            if kept:
                seconds[device if device not in seconds else f"{device} ({known})"] = kept
        return seconds

    def __call__(self, problem: Problem, device: Device) -> list[DeviceTimes]:
        """Times of this problem on other devices."""
        return [
            DeviceTimes(
                device=name,
                log2_runtime=times,
                same_vendor=same_vendor(name, device.name),
            )
            for (known, name), times in self._log2_runtime.items()
            if known == problem.name and device_group(name) != device_group(device.name)
        ]


def open_history(paths: Sequence[str]) -> History:
    """The history in files of rows."""
    return History.of_rows(concatenate([read_rows(path, columns=_COLUMNS) for path in paths]))


def read_times(
    paths: Iterable[str | Path], parameters: Collection[str], *, kernel: str | None = None
) -> dict[str, dict[str, float | None]]:
    """Read the times of one kernel on other devices, as `Tuner` takes them.

    Args:
        paths: Kernel Tuner caches, finished or not, and rows (Parquet).
        parameters: Names of the kernel's parameters.
        kernel: Name of the kernel in the rows; by default every row with these parameters is taken.

    Returns:
        Seconds by device and by the JSON text of a configuration; None where it failed. A further
        cache of a device is named after its file, since it may be of another size.

    Raises:
        SetupError: A file is neither, or a cache is of a kernel with other parameters.
    """
    files = [Path(path) for path in paths]
    known: dict[str, dict[str, float | None]] = {}
    if rows := [str(file) for file in files if file.suffix == ".parquet"]:
        problem = None if kernel is None else f"tuned/{kernel}"
        known |= open_history(rows).seconds(problem, parameters)
    for file in files:
        if file.suffix != ".parquet":
            space = read_space(file, language="cuda")
            if space.template.parameters.keys() != set(parameters):
                raise SetupError(
                    f"{file} tunes {', '.join(space.template.parameters)}, "
                    f"not {', '.join(parameters)}: give caches of the same kernel"
                )
            device = space.device or file.stem
            known[f"{device} ({file.stem})" if device in known else device] = space.seconds
    return known


def open_trees(history: Sequence[str] = (), model: str | None = None) -> TreesForecaster:
    """The tree forecaster; `history` are files of rows, `model` a file that training wrote."""
    elsewhere = None
    if history:
        elsewhere = open_history(history)
    return TreesForecaster(elsewhere=elsewhere, model=model)


def open_tuner(history: Sequence[str] = ()) -> TunerProposer:
    """The proposer of what a tuner suggests; `history` are files of rows of other devices."""
    return TunerProposer(open_history(history) if history else None)
