"""The loop alone: how many instant measurements a second it decides, records and learns from.

`sqlite_per_s`, `postgres_per_s`: whole searches over a template of two million configurations with
a backend that takes no time, the default forecaster and policy `measure_all`, 64 slots, and a store
that waits for the disk at each commit: medians of pairs in alternating order, with their ranges.
`default_policy_per_s`: the same with the default policy, which also considers kernels that it does
not measure.

`growth`: CPU per measurement at 10,000 measurements divided by that at 100, with 8 slots.

`crps_ratio`: mean CRPS of the kept model's forecasts of unseen configurations after 800
measurements, divided by that of a full fit to the same measurements (`SpaceForecaster.predict`).
Measurements are those of public tuner spaces, chosen at random or by a search.

    python bench/farm_loop.py [--quick] [--out JSON]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: the loop has one core

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from _data import Space, tuner_spaces
from _result import bench_parser, report, rounded
from kernelcast.distribution import Distribution
from kernelcast.events import Event, Measured, RunSpec
from kernelcast.farm.local import LocalFarm
from kernelcast.forecasters import TreesForecaster
from kernelcast.forecasters._tuned import TunedForecaster
from kernelcast.forecasters.space import SpaceForecaster
from kernelcast.parts import Parts
from kernelcast.policies import MeasureAll, Selective
from kernelcast.proposers import TemplateProposer
from kernelcast.protocols import Policy
from kernelcast.scoring import crps
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.strategies import Puct
from kernelcast.testing import SyntheticBackend, make_query, synthetic_problem
from kernelcast.types import (
    Budget,
    Failure,
    FailureKind,
    Kernel,
    Measurement,
    Observation,
    Problem,
    Query,
    Template,
    Timing,
    content_hash,
)

sys.path.append(str(Path(__file__).parents[1]))  # a script sees its own folder, not the tests
from tests.postgres import running

_SLOTS = 64
_GROWTH_SLOTS = 8
_SPACES = (
    "convolution@RTX 3090",
    "convolution_milo@MI250X",
    "dedispersion_milo@A100",
    "gemm@RTX 3090",
    "hotspot_milo_random@RTX A4000",
    "pnpoly@RTX 3090",
)
_SIZES = (25, 50, 100, 200, 800)
_UNSEEN = 200
_BATCH, _OFFERED, _LOCAL, _PARENTS = 8, 64, 0.7, 5


class _Tuned:
    """A tuner space as observations and queries; speedups are against its median time."""

    def __init__(self, space: Space) -> None:
        self.size = len(space.keys)
        self.configurations = space.configurations
        names = space.configurations[0]
        self.domain = {
            name: tuple(dict.fromkeys(point[name] for point in space.configurations))
            for name in names
        }
        template = Template(source="//", parameters=self.domain)
        self._problem = Problem.unstated(space.problem, "cuda", "//", template=template)
        runtime_ms = np.where(np.isfinite(space.runtime_ms), space.runtime_ms, np.nan)
        self.log2_speedup = np.log2(np.nanmedian(runtime_ms) / runtime_ms)
        codes = {name: {v: i for i, v in enumerate(vs)} for name, vs in self.domain.items()}
        self.levels = np.array(
            [[codes[name][point[name]] for name in names] for point in space.configurations]
        )

    def mean_crps(self, forecasts: Sequence[Distribution], indices: Sequence[int]) -> float:
        values = self.log2_speedup[list(indices)].tolist()
        return float(np.mean([crps(*pair) for pair in zip(forecasts, values, strict=True)]))

    def kernel(self, index: int) -> Kernel:
        source = f"// {index}"
        point = self.configurations[index]
        return Kernel(id=content_hash(source), language="cuda", source=source, parameters=point)

    def query(self, index: int) -> Query:
        return make_query(self.kernel(index), self._problem)

    def observation(self, index: int) -> Observation:
        kernel, value = self.kernel(index), float(self.log2_speedup[index])
        timing, failure = None, None
        if np.isnan(value):
            failure = Failure(kind=FailureKind.CRASH, message="recorded as failed")
        else:
            timing = Timing(
                log2_speedup=value,
                low=value,
                high=value,
                resolved=True,
                runtime_s=2.0**-value,
                reference_runtime_s=1.0,
                cases=(),
            )
        measurement = Measurement(
            kernel_id=kernel.id,
            problem_id=self._problem.id,
            device_id="recorded",
            toolchain="recorded",
            timing=timing,
            failure=failure,
            device_s=0.0,
        )
        return Observation(kernel=kernel, measurement=measurement)


def _searched(space: _Tuned, count: int, seed: int) -> list[int]:
    """Measurements of a search: batches of the best forecasts among near and random ones."""
    rng = np.random.default_rng([seed, 3])
    forecaster = TunedForecaster()
    order: list[int] = []
    free = np.ones(space.size, dtype=bool)
    while len(order) < min(count, space.size):
        offered = set(rng.choice(np.flatnonzero(free), size=min(_OFFERED, free.sum())).tolist())
        if order:
            speed = np.nan_to_num(space.log2_speedup[order], nan=-np.inf)
            parents = np.array(order)[np.argsort(-speed)[:_PARENTS]]
            steps = (space.levels[:, None] != space.levels[parents]).sum(axis=2).min(axis=1)
            near = rng.permutation(np.flatnonzero(free & (steps <= 2)))[:_OFFERED]
            local = int(_LOCAL * _OFFERED)
            offered = {*near[:local].tolist(), *list(offered)[: _OFFERED - local]}
        asked = sorted(offered)
        forecasts = forecaster.forecast([space.query(index) for index in asked])
        value = [f.p_ok * 2.0 ** f.distribution.quantile(0.8) for f in forecasts]
        chosen = [asked[at] for at in np.argsort(value)[::-1][:_BATCH]]
        forecaster.learn([space.observation(index) for index in chosen])
        free[chosen] = False
        order += chosen
    return order[:count]


def _full_fit(space: _Tuned, measured: Sequence[int], unseen: Sequence[int]) -> list[Distribution]:
    """Forecasts by a full fit to all measurements."""
    pool = [space.configurations[index] for index in (*measured, *unseen)]
    forecaster = SpaceForecaster(pool, domain=space.domain)
    for at, index in enumerate(measured):
        value = float(space.log2_speedup[index])
        forecaster.learn(at, None if np.isnan(value) else -value)
    predictions = forecaster.predict()
    rows = len(measured) + np.arange(len(unseen))
    return predictions.speedups(rows, np.zeros(len(unseen)))


def crps_ratio(*, quick: bool) -> dict[str, Any]:
    """Mean CRPS of the kept model / that of a full fit: geometric means over spaces and seeds."""
    spaces = [space for space in tuner_spaces() if space.label in _SPACES]
    ratios: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for label, space in ((space.label, _Tuned(space)) for space in spaces[:: 3 if quick else 1]):
        for seed in range(1 if quick else 2):
            rng = np.random.default_rng([seed, 5])
            drawn = rng.permutation(space.size)[: _SIZES[-1]].tolist()
            searched = _searched(space, _SIZES[-1], seed)
            for arm, order in (("random", drawn), ("search", searched)):
                timed = np.flatnonzero(~np.isnan(space.log2_speedup))
                unseen = rng.permutation(np.setdiff1d(timed, order))[:_UNSEEN].tolist()
                queries = [space.query(index) for index in unseen]
                forecaster = TunedForecaster()
                for first, size in pairwise((0, *_SIZES)):
                    forecaster.learn([space.observation(index) for index in order[first:size]])
                    kept = [forecast.distribution for forecast in forecaster.forecast(queries)]
                    full = _full_fit(space, order[:size], unseen)
                    ratio = space.mean_crps(kept, unseen) / space.mean_crps(full, unseen)
                    ratios[arm, size].append(ratio)
                    print(f"{label:32s} {arm} {seed} {size:4d} {ratio:.4f}", flush=True)
    last = [value for (_, size), values in ratios.items() if size == _SIZES[-1] for value in values]
    return {
        "crps_ratio": geometric_mean(last),
        "crps_worst_ratio": max(last),
        **{
            f"crps_{arm}": {str(size): geometric_mean(ratios[arm, size]) for size in _SIZES}
            for arm in ("random", "search")
        },
    }


class _Clock:
    """CPU seconds of the process at each measurement."""

    def __init__(self) -> None:
        self.cpu_s: list[float] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, Measured) and event.purpose == "search":
            self.cpu_s.append(time.process_time())

    def per_measurement(self, first: int, last: int) -> float:
        return (self.cpu_s[last - 1] - self.cpu_s[first - 1]) / (last - first)


def _search(store: Store, slots: int, measurements: int, policy: Policy) -> tuple[float, _Clock]:
    """Return measurements a second and the clock of a search with an instant backend."""
    parts = Parts(
        proposer=TemplateProposer(),
        forecaster=TreesForecaster(),
        policy=policy,
        strategy=Puct(),
        farm=LocalFarm(SyntheticBackend(), slots),
    )
    clock = _Clock()
    search = Search(
        synthetic_problem("ABCDEFG", 8),
        parts,
        store,
        spec=RunSpec(reuse=False),
        callbacks=[clock],
    )
    began = time.perf_counter()
    state = search.run(Budget(measurements=measurements)).state
    assert state.measured == measurements
    return measurements / (time.perf_counter() - began), clock


def rates(*, quick: bool) -> dict[str, Any]:
    """Measurements a second on both engines, and with the default policy."""
    pairs, count = (1, 200) if quick else (9, 2_000)
    arms: dict[str, list[float]] = {"sqlite": [], "postgres": [], "default_policy": []}
    with tempfile.TemporaryDirectory(dir=".") as folder, running(durable=True) as server:
        for pair in range(pairs):
            for arm in list(arms)[:: 1 if pair % 2 else -1]:
                place = server.database() if arm == "postgres" else f"{folder}/{arm}-{pair}.db"
                policy: Policy = Selective() if arm == "default_policy" else MeasureAll()
                share = 10 if arm == "default_policy" else 1  # it considers many more kernels
                with Store.open(place) as store:
                    per_s, _ = _search(store, _SLOTS, count // share, policy)
                arms[arm].append(per_s)
                print(f"{arm:16s} {pair} {per_s:.0f}", flush=True)
    return {
        **{f"{arm}_per_s": median(values) for arm, values in arms.items()},
        **{f"{arm}_range": [min(values), max(values)] for arm, values in arms.items()},
    }


def growth(*, quick: bool) -> dict[str, Any]:
    """CPU per measurement late in a run divided by that early in it."""
    measurements, repeats = (600, 1) if quick else (10_000, 3)
    early, late = [], []
    for _ in range(repeats):
        folder = tempfile.TemporaryDirectory(dir=".")
        with folder as path, Store.open(f"{path}/growth.db") as store:
            _, clock = _search(store, _GROWTH_SLOTS, measurements, MeasureAll())
        early.append(clock.per_measurement(100, 300))
        late.append(clock.per_measurement(measurements - 300, measurements))
        print(f"growth {early[-1] * 1e3:.2f} ms -> {late[-1] * 1e3:.2f} ms", flush=True)
    return {
        "growth": median(last / first for first, last in zip(early, late, strict=True)),
        "cpu_ms_at_100": [1e3 * value for value in early],
        f"cpu_ms_at_{measurements}": [1e3 * value for value in late],
    }


def main() -> None:
    options = bench_parser(__doc__, quick="one pair, two spaces, one seed").parse_args()
    result: dict[str, Any] = {}
    for part in (rates, growth, crps_ratio):
        result |= part(quick=options.quick)
    report(rounded(result), options)


if __name__ == "__main__":
    main()
