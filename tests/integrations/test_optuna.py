"""The sampler in `study.optimize` and between `ask` and `tell`."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna", reason="needs the dependency group bench")

import optuna
from optuna.trial import TrialState

from kernelcast import SetupError
from kernelcast.integrations.optuna import KernelcastSampler

BLOCKS, TILES, LAYOUTS = (16, 32, 64, 128, 256), (1, 2, 4, 8), ("row", "column")
CONFIGURATIONS: list[dict[str, int | float | str]] = [
    {"block": block, "tile": tile, "layout": layout, "version": 3}
    for block, tile, layout in itertools.product(BLOCKS, TILES, LAYOUTS)
]
BEST = {"block": 64, "tile": 4, "layout": "column"}
DISTRIBUTIONS = {
    "block": optuna.distributions.IntDistribution(16, 256, log=True),
    "tile": optuna.distributions.CategoricalDistribution(TILES),
    "layout": optuna.distributions.CategoricalDistribution(LAYOUTS),
}
OTHER_PROCESS = """
import optuna
from tests.integrations.test_optuna import *
optuna.logging.set_verbosity(optuna.logging.WARNING)
sampler = KernelcastSampler(CONFIGURATIONS)
study = shared(sys.argv[1], sampler)
print("ready", flush=True)
study.optimize(objective, n_trials=6)
"""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    yield
    optuna.logging.set_verbosity(optuna.logging.INFO)


def seconds(block: int, tile: int, layout: str) -> float | None:
    if block * tile >= 512:
        return None
    steps = abs(math.log2(block) - 6) + 0.5 * abs(math.log2(tile) - 2)
    return float(1e-3 * 2.0**steps + 1e-4 * (layout == "row"))


def objective(trial: optuna.Trial) -> float:
    """An objective as users write it; it does not suggest what is the same everywhere."""
    tile = trial.suggest_categorical("tile", TILES)
    block = trial.suggest_int("block", 16, 256, log=True)
    runtime_s = seconds(block, tile, trial.suggest_categorical("layout", LAYOUTS))
    if runtime_s is None:
        raise optuna.TrialPruned
    return runtime_s


def points(study: optuna.Study) -> list[tuple[Any, ...]]:
    return [tuple(trial.params[name] for name in BEST) for trial in study.trials if trial.params]


def shared(storage: Any, sampler: KernelcastSampler) -> optuna.Study:
    return optuna.create_study(
        study_name="gemm", storage=storage, sampler=sampler, load_if_exists=True
    )


def test_a_study_finds_the_fastest_and_learns_what_fails() -> None:
    sampler = KernelcastSampler(CONFIGURATIONS)
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=16)
    assert study.best_params == BEST
    assert len(set(points(study))) == 16
    told = [(outcome.configuration, outcome.seconds) for outcome in sampler.tuner.outcomes]
    assert told == [({**t.params, "version": 3}, t.value) for t in study.trials]
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE, TrialState.PRUNED}


def test_an_exception_that_the_study_catches_is_a_failure() -> None:
    def crashes(trial: optuna.Trial) -> float:
        objective(trial)
        raise ValueError

    sampler = KernelcastSampler(CONFIGURATIONS)
    optuna.create_study(sampler=sampler).optimize(crashes, n_trials=3, catch=(ValueError,))
    assert [outcome.seconds for outcome in sampler.tuner.outcomes] == [None] * 3


@pytest.mark.parametrize("n_jobs", [1, 4])
def test_every_configuration_is_tried_once_and_the_study_stops(n_jobs: int) -> None:
    sampler = KernelcastSampler(CONFIGURATIONS)
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_jobs=n_jobs)
    assert len(set(points(study))) == len(points(study)) == 40
    empty = len(study.trials) - 40
    assert empty == 0 if n_jobs == 1 else empty < n_jobs, "threads may have asked meanwhile"


def test_threads_have_different_configurations_in_flight() -> None:
    barrier = threading.Barrier(4, timeout=30)

    def waits(trial: optuna.Trial) -> float:
        runtime_s = objective(trial)
        barrier.wait()
        return runtime_s

    study = optuna.create_study(sampler=KernelcastSampler(CONFIGURATIONS[:16]))
    study.optimize(waits, n_trials=16, n_jobs=4)
    assert len(set(points(study))) == 16


def test_ask_and_tell_in_any_order_until_none_is_left() -> None:
    study = optuna.create_study(sampler=KernelcastSampler(CONFIGURATIONS))
    asked = [study.ask(DISTRIBUTIONS) for _ in range(40)]
    for trial in reversed(asked):
        runtime_s = seconds(**trial.params)
        study.tell(trial, runtime_s, None if runtime_s else TrialState.FAIL)
    assert len(set(points(study))) == 40
    with pytest.raises(SetupError, match="every configuration was tried: ask no further"):
        study.ask(DISTRIBUTIONS)


def test_a_study_goes_on_where_it_stopped() -> None:
    storage = optuna.storages.InMemoryStorage()
    first = shared(storage, KernelcastSampler(CONFIGURATIONS))
    first.enqueue_trial(BEST)
    first.optimize(objective, n_trials=6)
    assert first.trials[0].params == BEST
    sampler = KernelcastSampler(CONFIGURATIONS)
    second = shared(storage, sampler)
    second.optimize(objective, n_trials=6)
    assert len(set(points(second))) == len(sampler.tuner.outcomes) == 12


def test_what_runs_elsewhere_is_not_suggested_here() -> None:
    storage = optuna.storages.InMemoryStorage()
    here, there = (shared(storage, KernelcastSampler(CONFIGURATIONS)) for _ in range(2))
    for number in range(20):
        asked = [study.ask(DISTRIBUTIONS) for study in (here, there)]
        for study, trial in zip((here, there), asked, strict=True):
            if number < 19:
                runtime_s = seconds(**trial.params)
                study.tell(trial, runtime_s, None if runtime_s else TrialState.FAIL)
    assert len(set(points(here))) == 40


def test_two_processes_share_a_study(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/optuna.db"
    sampler = KernelcastSampler(CONFIGURATIONS)
    study = shared(storage, sampler)
    command = [sys.executable, "-c", OTHER_PROCESS, storage]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        study.optimize(objective, n_trials=6)
    assert other.returncode == 0
    done = set(points(study))
    assert len(study.trials) == 12
    assert len(done) >= 6, "both may choose the same in the same moment"
    study.ask(DISTRIBUTIONS)
    assert len(sampler.tuner.outcomes) == len(done), "each learns from both"


def test_times_of_another_device_say_where_to_begin(tmp_path: Path) -> None:
    elsewhere = optuna.create_study(sampler=KernelcastSampler(CONFIGURATIONS))
    elsewhere.optimize(objective)
    times = {json.dumps({**trial.params, "version": 3}): trial.value for trial in elsewhere.trials}
    store = tmp_path / "tuning.db"

    def begun(known: Any) -> optuna.Study:
        sampler = KernelcastSampler(CONFIGURATIONS, known=known, device="A100", store=store)
        study = optuna.create_study(sampler=sampler)
        study.optimize(objective, n_trials=3)
        return study

    assert begun({"H100": times}).trials[0].params == BEST
    again = begun(None)
    assert again.trials[0].params == BEST, "the fastest so far is part of the second study"
    assert len(again.trials) == 3


def stated(value: float) -> Callable[[optuna.Trial], float]:
    def states(trial: optuna.Trial) -> float:
        objective(trial)
        return value

    return states


def unknown(trial: optuna.Trial) -> float:
    return float(trial.suggest_int("warps", 1, 8))


@pytest.mark.parametrize(
    ("directions", "asked", "message"),
    [
        (["maximize"], objective, r"create_study\(direction='minimize'\)"),
        (["minimize", "minimize"], objective, "kernelcast minimises one time"),
        (["minimize"], stated(-1.0), "trial 0 has the value -1.0: return seconds"),
        (["minimize"], unknown, "no 'warps': suggest block, tile, layout, version"),
    ],
)
def test_what_is_no_time_is_refused(directions: list[str], asked: Any, message: str) -> None:
    study = optuna.create_study(directions=directions, sampler=KernelcastSampler(CONFIGURATIONS))
    with pytest.raises(SetupError, match=message):
        study.optimize(asked, n_trials=1)


def test_a_sampler_is_of_one_space_and_one_study() -> None:
    with pytest.raises(SetupError, match="add what one lacks"):
        KernelcastSampler([{"block": 16}, {"tile": 1}])
    sampler = KernelcastSampler(CONFIGURATIONS)
    optuna.create_study(sampler=sampler).ask(DISTRIBUTIONS)
    with pytest.raises(SetupError, match="the sampler is of another study"):
        optuna.create_study(sampler=sampler).ask(DISTRIBUTIONS)
