"""Triton's autotuner on a recorded space: it times the configurations that `selective` chooses."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from _data import Space
from _result import cannot_run
from kernelcast.canonical import canonical_parameters

try:
    import triton

    from kernelcast.integrations.triton import selective
except ImportError:
    cannot_run("Triton is missing: pip install triton")

Times = dict[str, float | None]
_LAUNCH = {"num_warps": 4, "num_ctas": 1, "num_stages": 2}


def run(space: Space, seed: int, budget: int, known: Mapping[str, Times] | None) -> list[int]:
    """Which configurations the autotuner timed, in order."""
    recorded = _Recorded(space)
    configs = [triton.Config(dict(each), num_warps=4, num_stages=2) for each in recorded.points]
    arguments = selective(
        budget,
        device=space.gpu,
        known={name: _of_configs(times) for name, times in (known or {}).items()},
        seed=seed,
        do_bench=recorded.bench,
    )
    triton.autotune(configs, key=[], **arguments)(recorded).run()
    return recorded.timed


def _of_configs(times: Times) -> Times:
    """Times by what `all_kwargs` says of a configuration."""
    return {json.dumps({**json.loads(key), **_LAUNCH}): s for key, s in times.items()}


class _Recorded:
    """Stands where a kernel stands: a call of it takes the recorded time."""

    arg_names: tuple[str, ...] = ()

    def __init__(self, space: Space) -> None:
        self._space = space
        self.points = space.configurations
        self._row = {key: row for row, key in enumerate(space.keys)}
        self._latest = -1
        self.timed: list[int] = []

    @staticmethod
    def fn() -> None:
        """What Triton takes the name from."""

    def run(self, **parameters: Any) -> None:
        own = {name: parameters[name] for name in self.points[0]}
        self._latest = self._row[canonical_parameters(own)]

    def bench(self, call: Callable[[], Any], quantiles: tuple[float, ...]) -> list[float]:
        call()
        self.timed.append(self._latest)
        ms = float(self._space.runtime_ms[self._latest])
        if not np.isfinite(ms):
            raise triton.OutOfResources(1, 0, "shared memory")
        return [ms] * len(quantiles)
