"""The measured data that benches read: its folder, tuner spaces, one problem on several GPUs."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from _result import cannot_run
from kernelcast.canonical import canonical_parameters
from kernelcast.dataset.keys import device_group, problem_family

Floats = NDArray[np.float64]
Configuration = dict[str, int | float | str]

_DEFAULT_FOLDER = Path(__file__).parents[2] / "shared" / "data"
_SPACE_FILES = ("tuner_benchmark_hub", "tuner_kernel_tuner_paper")


def data_folder() -> Path:
    """The folder of Parquet files: $KERNELCAST_DATA, by default ../shared/data."""
    folder = Path(os.environ.get("KERNELCAST_DATA") or _DEFAULT_FOLDER)
    if not folder.is_dir():
        cannot_run(_how_to_get(folder))
    return folder


def read_columns(name: str, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Columns of one file of the folder, e.g. `tuner_costs`."""
    path = data_folder() / f"{name}.parquet"
    if not path.is_file():
        cannot_run(_how_to_get(path))
    table = pq.read_table(path, columns=list(columns))
    return {column: table[column].to_pylist() for column in columns}


def _how_to_get(missing: Path) -> str:
    return f"""The measured data is missing: {missing.absolute()} is not there.
It was published by others and is not part of this repository. Set KERNELCAST_DATA to its folder.
Public sources, all on github.com:
  tuner spaces         AutoTuningAssociation/benchmark_hub, fjwillemsen/kernel_tuner_paper
  kernels from models  williamqwu/sol-execbench-rocm, deepreinforce-ai/CUDA-L1 and CUDA-L2,
                       Infatoshi/kernelbench.com, ScalingIntelligence/KernelBench and its forks
What makes the same rows from them:
  kernelcast data import kernel-tuner CACHE.json --out rows.parquet
  kernelcast data import t4 RESULTS.json --problem NAME --device NAME --out rows.parquet
  kernelcast data import kernelbench RUN_FOLDER --out rows.parquet
File by file: docs/how-to/measured-data.md"""


@dataclass(frozen=True, eq=False)
class Space:
    """One problem on one GPU: every configuration that was measured, in the order of its values."""

    problem: str
    family: str
    gpu: str
    vendor: Literal["nvidia", "amd"]
    parameters: tuple[str, ...]
    """Names that vary, sorted."""
    configurations: tuple[Configuration, ...]
    keys: tuple[str, ...]
    """Canonical parameters: what joins a configuration to its like on another GPU."""
    runtime_ms: Floats
    """Infinite where it failed."""
    device_s: Floats | None
    """Compile and benchmark seconds as recorded; None where the source has none."""

    @property
    def best_ms(self) -> float:
        """The optimum, known because all were measured."""
        return float(self.runtime_ms.min())

    @property
    def label(self) -> str:
        """Short and unique, e.g. gemm@RTX 3090."""
        name = re.sub(r"^\w+/|\(.*", "", self.problem)
        return f"{name}@{device_group(self.gpu)}"

    @cached_property
    def fingerprint(self) -> str:
        """A hash of configurations, times and order, to check that stored indices still hold."""
        text = "\n".join((self.problem, self.gpu, *self.keys)).encode()
        return hashlib.sha256(text + self.runtime_ms.tobytes()).hexdigest()[:16]


def tuner_spaces(least_rows: int = 2000) -> list[Space]:
    """Every (problem, GPU) of the tuner files with enough rows, sorted by problem and GPU."""
    columns = ("problem", "gpu", "params", "candidate_ms", "status")
    configurations: dict[str, Configuration] = {}
    key_of: dict[str, str] = {}

    def key(text: str) -> str:
        # Most texts recur on several GPUs, and parsing them takes most of the time.
        if text not in key_of:
            configuration = dict(sorted(json.loads(text).items()))
            key_of[text] = canonical_parameters(configuration)
            configurations.setdefault(key_of[text], configuration)
        return key_of[text]

    measured: defaultdict[tuple[str, str], tuple[list[str], list[float]]]
    measured = defaultdict(lambda: ([], []))
    for name in _SPACE_FILES:
        rows = read_columns(name, columns)
        for problem, gpu, text, ms, status in zip(*rows.values(), strict=True):
            keys, times_ms = measured[problem, gpu]
            keys.append(key(text))
            times_ms.append(ms if status == "ok" else np.inf)
    costs: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    recorded = read_columns(
        "tuner_costs", ("problem", "gpu", "params", "compile_ms", "benchmark_ms")
    )
    for problem, gpu, text, compile_ms, benchmark_ms in zip(*recorded.values(), strict=True):
        costs[problem, gpu][key(text)] = (compile_ms + benchmark_ms) * 1e-3
    return [
        _space(problem, gpu, keys, times_ms, configurations, costs.get((problem, gpu)))
        for (problem, gpu), (keys, times_ms) in sorted(measured.items())
        if len(keys) >= least_rows
    ]


def _space(
    problem: str,
    gpu: str,
    keys: list[str],
    times_ms: list[float],
    configurations: dict[str, Configuration],
    costs: dict[str, float] | None,
) -> Space:
    time_ms = dict(zip(keys, times_ms, strict=True))
    for repeated in (key for key, count in Counter(keys).items() if count > 1):
        time_ms[repeated] = median(
            ms for key, ms in zip(keys, times_ms, strict=True) if key == repeated
        )
    rows = sorted(time_ms, key=lambda key: tuple(configurations[key].values()))
    chosen = tuple(configurations[key] for key in rows)
    values = zip(*(configuration.values() for configuration in chosen), strict=True)
    return Space(
        problem=problem,
        family=problem_family(problem),
        gpu=gpu,
        vendor="amd" if gpu.startswith("AMD") else "nvidia",
        parameters=tuple(
            name for name, taken in zip(chosen[0], values, strict=True) if len(set(taken)) > 1
        ),
        configurations=chosen,
        keys=tuple(rows),
        runtime_ms=np.array([time_ms[key] for key in rows]),
        device_s=None if costs is None else np.array([costs.get(key, np.nan) for key in rows]),
    )


def siblings_of(space: Space, spaces: Sequence[Space]) -> list[Space]:
    """The same problem on other GPUs."""
    return [other for other in spaces if other.problem == space.problem and other.gpu != space.gpu]


def aligned(space: Space, sibling: Space) -> Floats:
    """The sibling's times in the order of `space`'s configurations, nan where it has none."""
    times = dict(zip(sibling.keys, sibling.runtime_ms.tolist(), strict=True))
    return np.array([times.get(key, np.nan) for key in space.keys])
