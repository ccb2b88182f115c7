"""Kernel Tuner's own strategies on a recorded space, by its simulation mode, and ours in it.

A run is the order in which a strategy measured the space's configurations. Runs are kept in a work
file, one JSON line each, because all strategies on all spaces take hours. It goes on where it was:

    python bench/_kernel_tuner.py --out kernel_tuner.jsonl [--seeds 20] [--budget 200]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import io
import json
import random
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from scipy.stats import qmc

from _data import Space, tuner_spaces
from _result import cannot_run, json_lines

try:
    from constraint import FunctionConstraint
    from kernel_tuner.interface import Options, strategy_map, tune_kernel
    from kernel_tuner.runners.simulation import SimulationRunner
    from kernel_tuner.searchspace import Searchspace
    from kernel_tuner.strategies import bayes_opt
    from kernel_tuner.strategies.common import CostFunc
    from kernel_tuner.strategies.wrapper import OptAlgWrapper
    from kernel_tuner.util import TuningBudget, read_cache
except ImportError:
    cannot_run("Kernel Tuner is missing: pip install kernel-tuner")

from kernelcast.integrations.kernel_tuner import Kernelcast

STRATEGIES = (
    "random_sample",
    "genetic_algorithm",
    "diff_evo",
    "pso",
    "adaptive_tabu_greywolf",
    "mls",
    "hybrid_vndx",
    "bayes_opt_repaired",
)
"""Quickest first. Not here: what is for several objectives, fails with current packages, or ends
after a dozen measurements. `bayes_opt_repaired` is `bayes_opt` without a fault of version 1.5.0."""
ADAPTER = "kernelcast"
"""The strategy of `Kernelcast`; not one of `STRATEGIES`, which are Kernel Tuner's own."""
_NO_LIMIT = 10**9  # threads per block: the restriction says what fits


class Run(NamedTuple):
    """What a run depends on: another space, version or budget is another run."""

    strategy: str
    space: str
    fingerprint: str
    seed: int
    budget: int
    version: str


def run_of(space: Space, strategy: str, seed: int, budget: int) -> Run:
    """What a run is recorded under."""
    version = importlib.metadata.version("kernel-tuner")
    return Run(strategy, space.label, space.fingerprint, seed, budget, version)


def recorded(path: Path) -> dict[Run, list[int]]:
    """The runs in a work file: `recorded(path)[run_of(space, strategy, seed, budget)]`."""
    found = {}
    for entry in json_lines(path):
        indices = entry.pop("indices")
        found[Run(**entry)] = indices
    return found


def run(
    space: Space,
    strategy: str,
    seed: int,
    budget: int,
    known: Mapping[str, Mapping[str, float | None]] | None = None,
) -> list[int]:
    """Which configurations the strategy measured, in order, each once; at most `budget`.

    Fewer where it gave up before. Strategies run as they come, with no option but the budget, and
    draw from the global random state, which this sets. Only the adapter takes what is `known`.
    """
    if strategy == ADAPTER:
        return _by_adapter(space, seed, budget, known or {})
    cache = _cache(space)
    # Anew for each run, since the neighbours that one looked up change what the next one draws.
    searchspace = Searchspace(None, None, None, from_cache=cache)
    options = Options(
        tune_params=searchspace.tune_params,
        restrictions=[restriction(space)],
        cache=cache["cache"],
        simulation_mode=True,
        objective=["time"],
        objective_higher_is_better=[False],
        metrics=None,
        verbose=False,
        seed=seed,
        strategy_options=Options(max_fevals=budget),
        budget=TuningBudget(None, min(budget, searchspace.size)),
    )
    runner = SimulationRunner(None, Options(kernel_name=space.label), Options(quiet=True), 1, None)
    name = strategy.removesuffix("_repaired")
    repaired = mock.patch.object(bayes_opt, "CostFunc", _CostFunc)
    with seeded(space, seed), repaired if name != strategy else contextlib.nullcontext():
        results = strategy_map[name].tune(searchspace, runner, options)
    return in_order(space, results)


def _by_adapter(
    space: Space, seed: int, budget: int, known: Mapping[str, Mapping[str, float | None]]
) -> list[int]:
    """A run as users start it: it solves the restrictions, which takes hotspot half a minute."""
    adapter = Kernelcast(
        known={
            device: {_varying(space, key): seconds for key, seconds in times.items()}
            for device, times in known.items()
        },
        device=space.gpu,
        seed=seed,
    )
    with tempfile.TemporaryDirectory() as folder, seeded(space, seed):
        cache = Path(folder) / "cache.json"
        write_cache(space, cache)
        results, _ = tune_kernel(
            space.label,
            "",
            (1,),
            [],
            json.loads(cache.read_text())["tune_params"],
            restrictions=[restriction(space)],
            strategy=OptAlgWrapper(adapter),
            strategy_options={"max_fevals": budget},
            cache=str(cache),
            simulation_mode=True,
            quiet=True,
        )
    return in_order(space, results)


def _varying(space: Space, key: str) -> str:
    """The part of a configuration that a cache of the space states."""
    configuration = json.loads(key)
    return json.dumps({name: configuration[name] for name in space.parameters})


class _CostFunc(CostFunc):  # type: ignore[misc]
    """A failure costs 1e20, which is what Bayesian optimisation leaves out of its model.

    Version 1.5.0 hands it the largest float instead, which the model then learns as a time.
    """

    def eval_all(self, xs: Any, check_restrictions: bool = True) -> list[float]:  # noqa: FBT001, FBT002
        return [min(cost, 1e20) for cost in super().eval_all(xs, check_restrictions)]


def in_order(space: Space, results: list[dict[str, Any]]) -> list[int]:
    """The configurations behind Kernel Tuner's results, each where it was first measured."""
    place = {values: index for index, values in enumerate(_values(space))}
    # Strategies may ask for what the restriction does not admit; that costs them nothing.
    asked = (place.get(tuple(each[name] for name in space.parameters)) for each in results)
    return list(dict.fromkeys(index for index in asked if index is not None))


@contextlib.contextmanager
def seeded(space: Space, seed: int) -> Iterator[None]:
    """Every source of chance set, and what Kernel Tuner prints and warns of kept away."""
    # Spaces of one problem have one order: the bare seed would draw the same from all of them, and
    # a mean over spaces would be as uncertain as one space.
    seed = int(f"{space.fingerprint}{seed:x}", 16) % 2**32
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the state that the strategies draw from
    sampler = functools.partial(qmc.LatinHypercube, rng=np.random.default_rng(seed))
    with (
        mock.patch.object(qmc, "LatinHypercube", sampler),
        mock.patch.object(bayes_opt, "LatinHypercube", sampler),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def restriction(space: Space) -> FunctionConstraint:
    """Admits exactly the configurations that were measured, those that failed among them."""
    admitted = frozenset(_values(space))
    return FunctionConstraint(lambda *values: values in admitted)


def write_cache(space: Space, path: Path) -> None:
    """The space as a Kernel Tuner cache file."""
    taken = zip(*_values(space), strict=True)
    entries = {
        ",".join(map(str, values)): {
            **dict(zip(space.parameters, values, strict=True)),
            "time": time_ms if np.isfinite(time_ms) else "RuntimeFailedConfig",
        }
        for values, time_ms in zip(_values(space), space.runtime_ms.tolist(), strict=True)
    }
    content = {
        "device_name": space.gpu,
        "kernel_name": space.label,
        "problem_size": [1],
        "tune_params_keys": space.parameters,
        "tune_params": {
            name: sorted(set(values)) for name, values in zip(space.parameters, taken, strict=True)
        },
        "cache": entries,
    }
    # Kernel Tuner takes a file that does not end like this for one left open.
    path.write_text(json.dumps(content, separators=(",", ":")))


@functools.cache
def _cache(space: Space) -> dict[str, Any]:
    """What Kernel Tuner reads from the space's cache file, in the order its solver comes to."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cache.json"
        write_cache(space, path)
        cache: dict[str, Any] = read_cache(path, open_cache=False)
    # Some strategies evaluate in the order of the search space. Solving takes up to a minute where
    # few of many combinations were measured, so it is done once and not for each run.
    solved = Searchspace(cache["tune_params"], [restriction(space)], max_threads=_NO_LIMIT)
    keys = (",".join(map(str, values)) for values in solved.list)
    return {**cache, "cache": {key: cache["cache"][key] for key in keys}}


@functools.cache
def _values(space: Space) -> list[tuple[int | float | str, ...]]:
    names = space.parameters
    return [tuple(each[name] for name in names) for each in space.configurations]


def main() -> None:
    parser = argparse.ArgumentParser(description="Record what Kernel Tuner's strategies measure.")
    parser.add_argument("--out", type=Path, required=True, help="work file; goes on if it is there")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--strategy", action="append", choices=STRATEGIES, help="default: all")
    arguments = parser.parse_args()
    spaces = tuner_spaces()
    done = recorded(arguments.out)
    with arguments.out.open("a") as out:
        for strategy in arguments.strategy or STRATEGIES:
            began, made = time.monotonic(), 0
            for space in spaces:
                for seed in range(arguments.seeds):
                    key = run_of(space, strategy, seed, arguments.budget)
                    if key not in done:
                        indices = run(space, strategy, seed, arguments.budget)
                        out.write(json.dumps({**key._asdict(), "indices": indices}) + "\n")
                        out.flush()
                        made += 1
            print(f"{strategy}: {made} runs in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
