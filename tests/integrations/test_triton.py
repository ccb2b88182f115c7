"""Triton's own autotuner times what a tuner chooses; recorded times stand in for a GPU."""

from __future__ import annotations

import inspect
import itertools
import json
import logging
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelcast import Outcome, SetupError, Tuner

triton = pytest.importorskip("triton", reason="needs Triton: pip install triton")

from kernelcast.integrations.triton import selective  # noqa: E402 - it imports Triton

GPU = "NVIDIA GeForce RTX 3090"
STORED: dict[str, Any] = {"device": GPU, "kernel": "scale", "key": ["size"]}


@triton.jit  # type: ignore[untyped-decorator]
def scale(x: Any, size: int) -> None:
    """Give the name and the source that Triton asks a kernel for."""


class Recorded:
    """Stands where a kernel stands: a call of it takes the time that a function tells."""

    arg_names = ("x", "size")
    fn = scale

    def __init__(self, time_ms: Callable[[Mapping[str, Any]], float]) -> None:
        self.time_ms = time_ms
        self.timed: list[Mapping[str, Any]] = []
        self.compiled: list[Mapping[str, Any]] = []
        self.called: Mapping[str, Any] = {}

    def run(self, x: Any, size: int, **parameters: Any) -> None:
        parameters.pop("grid", None)
        self.called = {**parameters, "size": size}

    def warmup(self, x: Any, size: int, **parameters: Any) -> None:
        self.compiled.append(parameters)

    def bench(self, call: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
        call()
        called = self.called
        self.timed.append(called)
        return [self.time_ms(called)] * len(quantiles)


def time_ms(at: Mapping[str, Any]) -> float:
    """Fastest with BLOCK 128, TILE 4, 8 warps and 3 stages."""
    apart = abs(at["BLOCK"] / 128 - 1) + abs(at["TILE"] / 4 - 1) + abs(at["num_warps"] / 8 - 1)
    return float(at["size"] * (1 + apart + abs(at["num_stages"] - 3) / 4))


BEST = {"BLOCK": 128, "TILE": 4}


def space(pre_hook: Callable[..., None] | None = None) -> list[Any]:
    return [
        triton.Config(
            {"BLOCK": block, "TILE": tile}, num_warps=warps, num_stages=stages, pre_hook=pre_hook
        )
        for block, tile, warps, stages in itertools.product(
            (16, 32, 64, 128, 256, 512), (1, 2, 4, 8, 16), (1, 2, 4, 8), (1, 2, 3, 4)
        )
    ]


def autotuned(recorded: Recorded, *, configs: list[Any] | None = None, **options: Any) -> Any:
    """Return the kernel with Triton's decorator around it."""
    arguments = selective(do_bench=recorded.bench, **options)
    return triton.autotune(configs or space(), key=["size"], **arguments)(recorded)


def until_best(kernel: Recorded) -> int:
    """Return how many were timed when the fastest was."""
    times = [time_ms(each) for each in kernel.timed]
    return times.index(min(times)) + 1


def stored(store: Path, value: str = "size=1") -> tuple[Outcome, ...]:
    """Return what a store has of the tuning for a value of the key."""
    points = [config.all_kwargs() for config in space()]
    return Tuner(points, device=f"{GPU}, {value}", store=store, kernel="scale").outcomes


# -------------------------------------------------------------------------------------- choices


@pytest.mark.parametrize("seed", [0, 1, 2])  # at random, one seed in ten would do
def test_the_best_of_a_space_is_found_in_a_tenth_of_it(seed: int) -> None:
    kernel = Recorded(time_ms)
    tuner = autotuned(kernel, measurements=48, seed=seed)
    tuner.run(None, 1)
    assert tuner.best_config.kwargs == BEST
    assert len(kernel.timed) == len({json.dumps(each) for each in kernel.timed}) == 48
    assert kernel.called == {**tuner.best_config.all_kwargs(), "size": 1}


def test_a_space_of_fewer_configurations_is_timed_in_full() -> None:
    kernel = Recorded(time_ms)
    few = space()[:30]
    tuner = autotuned(kernel, configs=few)
    tuner.run(None, 1)
    assert set(tuner.configs_timings) == set(few)
    assert len(kernel.timed) == 30


def test_what_differs_in_a_launch_option_alone_is_another_configuration() -> None:
    calls: list[Mapping[str, Any]] = []
    configs = [
        triton.Config({"BLOCK": 64, "KIND": kind}, maxnreg=maxnreg, pre_hook=calls.append)
        for kind, maxnreg in itertools.product((triton.language.float16, None), (None, 64, 128))
    ]
    kernel = Recorded(lambda at: 1.0 if at.get("maxnreg") == 64 else 2.0)
    tuner = autotuned(kernel, configs=[*configs, configs[0]])
    tuner.run(None, 1)
    assert tuner.best_config.maxnreg == 64
    assert len(kernel.timed) == 6
    assert len(calls) == 7  # Triton calls a hook before each time, and before the call itself


def test_a_callers_own_pruning_comes_first() -> None:
    kernel = Recorded(time_ms)

    def prune(configs: list[Any], named: Mapping[str, Any], **others: Any) -> list[Any]:
        assert named == {"x": None, "size": 1}
        return [config for config in configs if config.num_warps == 2]

    autotuned(kernel, measurements=20, early_config_prune=prune).run(None, 1)
    assert {each["num_warps"] for each in kernel.timed} == {2}


def test_the_tuner_ends_a_tuning_early_only_if_asked() -> None:
    flat, asked = Recorded(lambda at: 1.0), Recorded(lambda at: 1.0)
    autotuned(flat, measurements=40).run(None, 1)
    autotuned(asked, measurements=40, stop_early=True).run(None, 1)
    assert len(asked.timed) < len(flat.timed) == 40


def test_a_performance_model_beside_it_chooses_in_its_place() -> None:
    """It keeps its `top_k` of all configurations, not of those that would be timed."""
    kernel = Recorded(time_ms)
    arguments = selective(10, do_bench=kernel.bench)
    arguments["prune_configs_by"] |= {"perf_model": lambda x, **at: time_ms(at), "top_k": 3}
    tuner = triton.autotune(space(), key=["size"], **arguments)(kernel)
    tuner.run(None, size=1)
    assert tuner.best_config.kwargs == BEST
    assert len(kernel.timed) == 3


# ------------------------------------------------------------------------------ what is known


def test_a_value_of_the_key_knows_the_times_of_those_before() -> None:
    kernel = Recorded(time_ms)
    tuner = autotuned(kernel, measurements=40, device=GPU)
    tuner.run(None, 1)
    alone = until_best(kernel)
    kernel.timed.clear()
    tuner.run(None, 2)
    assert until_best(kernel) <= 3 < alone
    assert len(kernel.timed) == 40


def test_times_on_another_gpu_are_known() -> None:
    known = {
        "NVIDIA A100": {
            json.dumps(config.all_kwargs()): 1e-6 * time_ms({**config.all_kwargs(), "size": 1})
            for config in space()
        }
    }
    kernel = Recorded(time_ms)
    autotuned(kernel, measurements=10, device=lambda: GPU, known=known).run(None, 4)
    assert until_best(kernel) <= 2


# ----------------------------------------------------------------------------------- failures


def fails(error: Exception) -> Callable[[Mapping[str, Any]], float]:
    def time(at: Mapping[str, Any]) -> float:
        if at["BLOCK"] > 128:
            raise error
        return time_ms(at)

    return time


@pytest.mark.parametrize(
    "error",
    [
        triton.OutOfResources(1, 0, "shared memory"),
        triton.compiler.errors.CompileTimeAssertionFailure("", None, "too large"),
    ],
    ids=["out of resources", "static assertion"],
)
def test_what_triton_takes_for_a_failure_is_reported_as_one(
    error: Exception, tmp_path: Path
) -> None:
    kernel = Recorded(fails(error))
    tuner = autotuned(kernel, measurements=40, store=tmp_path / "t.db", **STORED)
    tuner.run(None, 1)
    assert tuner.best_config.kwargs == BEST
    outcomes = stored(tmp_path / "t.db")
    failed = [each for each in outcomes if each.seconds is None]
    assert len(outcomes) == 40
    assert 0 < len(failed) < 12
    assert {each.configuration["BLOCK"] for each in failed} <= {256, 512}


def test_a_kernel_of_which_nothing_runs_fails_as_in_triton(tmp_path: Path) -> None:
    """Also after its budget was spent by another process."""
    for timed in (20, 1):
        kernel = Recorded(fails(triton.OutOfResources(1, 0, "shared memory")))
        large = [config for config in space() if config.kwargs["BLOCK"] > 128]
        options: dict[str, Any] = {"measurements": 20, "store": tmp_path / "t.db", **STORED}
        tuner = autotuned(kernel, configs=large, **options)
        tuner.run(None, 1)
        assert all(times[0] == math.inf for times in tuner.configs_timings.values())
        assert len(tuner.configs_timings) == timed


def test_any_other_error_reaches_the_caller_and_is_no_failure_of_a_configuration(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {"measurements": 20, "store": tmp_path / "t.db", **STORED}
    broken = Recorded(fails(RuntimeError("a bug in the kernel")))
    with pytest.raises(RuntimeError, match="a bug in the kernel"):
        autotuned(broken, configs=space()[::-1], **options).run(None, 1)
    assert all(outcome.seconds is not None for outcome in stored(tmp_path / "t.db"))
    repaired = Recorded(time_ms)
    autotuned(repaired, configs=space()[::-1], **options).run(None, 1)
    assert broken.timed[-1] == repaired.timed[0]


# ---------------------------------------------------------------------------------- the store


def test_a_tuning_that_ended_is_not_repeated(tmp_path: Path) -> None:
    options: dict[str, Any] = {"measurements": 40, "store": tmp_path / "t.db", **STORED}
    autotuned(Recorded(time_ms), **options).run(None, 1)
    again = Recorded(time_ms)
    tuner = autotuned(again, **options)
    tuner.run(None, 1)
    assert tuner.best_config.kwargs == BEST
    times_a_single_one = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8)
    assert len(again.timed) == times_a_single_one


def test_an_interrupted_tuning_goes_on_with_all_that_it_has(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def until(count: int) -> Callable[[Mapping[str, Any]], float]:
        def time(at: Mapping[str, Any]) -> float:
            if len(first.timed) > count:
                raise Killed
            return time_ms(at)

        return time

    options: dict[str, Any] = {"measurements": 48, "store": tmp_path / "t.db", **STORED}
    first = Recorded(until(46))
    with pytest.raises(Killed):
        autotuned(first, **options).run(None, 1)
    second = Recorded(time_ms)
    tuner = autotuned(second, **options)
    tuner.run(None, 1)
    assert second.timed[0] == first.timed[46]  # what was in flight
    assert tuner.best_config.kwargs == BEST  # timed again, since only the first process knew it
    assert len(second.timed) == 2 + 1
    assert len(stored(tmp_path / "t.db")) == 48


def test_times_of_other_keys_and_gpus_in_a_store_are_known(tmp_path: Path) -> None:
    options: dict[str, Any] = {"measurements": 40, "store": tmp_path / "t.db"}
    autotuned(Recorded(time_ms), **options, **STORED).run(None, 1)
    kernel = Recorded(time_ms)
    autotuned(kernel, **options, **{**STORED, "device": "NVIDIA A100"}).run(None, 2)
    assert until_best(kernel) <= 3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, "x: float32, size=1, eps=0.5"),
        (["size"], "x: float32, size=1"),
        ([], "x: float32"),
    ],
)
def test_a_value_of_the_key_is_kept_under_the_arguments_that_are_the_key(
    key: list[str] | None, value: str, tmp_path: Path
) -> None:
    """The types of arrays are part of it in Triton too; how a kernel is launched is none."""
    options = {**STORED, "key": key, "store": tmp_path / "t.db"}
    tuner = autotuned(Recorded(time_ms), measurements=2, **options)
    tuner[(1,)](np.zeros(4, dtype=np.float32), 1, eps=0.5)
    assert len(stored(tmp_path / "t.db", value)) == 2


def test_a_second_process_tunes_without_the_store_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    holds = """
import json, sys
from kernelcast import Tuner
points, device, store = sys.argv[1:]
tuner = Tuner(json.loads(points), device=device, store=store, kernel="scale")
print("held", flush=True)
sys.stdin.read()
"""
    store = tmp_path / "t.db"
    points = json.dumps([config.all_kwargs() for config in space()])
    command = [sys.executable, "-c", holds, points, f"{GPU}, size=1", str(store)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        kernel = Recorded(time_ms)
        tuner = autotuned(kernel, measurements=40, store=store, **STORED)
        with caplog.at_level(logging.WARNING):
            tuner.run(None, 1)
        assert f"tuned without the store: run 'tune-scale@{GPU}, size=1' is running" in caplog.text
        other.communicate()
    assert tuner.best_config.kwargs == BEST
    assert stored(store) == ()
    tuner.run(None, 2)
    assert len(stored(store, "size=2")) == 40


# ----------------------------------------------------------- what reads the list before it times


class NoGpu:
    """Stands where the driver of a GPU stands, for what asks it only which GPU that is."""

    def get_current_target(self) -> Any:
        return triton.backends.compiler.GPUTarget("cuda", 86, 32)


@pytest.fixture
def disk_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if "cache_results" not in inspect.signature(triton.autotune).parameters:
        pytest.skip("this Triton keeps no results on disk")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    triton.runtime.driver.set_active(NoGpu())
    yield
    triton.runtime.driver.set_active(None)  # asked for again when it is needed


@pytest.mark.usefixtures("disk_cache")
def test_results_that_triton_keeps_on_disk_are_found_again() -> None:
    def timed(measurements: int, *sizes: int) -> int:
        kernel = Recorded(time_ms)
        arguments = selective(measurements, do_bench=kernel.bench)
        tuner = triton.autotune(space(), key=["size"], cache_results=True, **arguments)(kernel)
        for size in sizes:
            tuner.run(None, size)
            assert tuner.best_config.kwargs == BEST
        return len(kernel.timed)

    assert timed(40, 1, 2) == 80
    assert timed(40, 2) == 0  # whatever was tuned before
    assert timed(40, 3, 1) == 40
    assert timed(60, 1) == 60  # fewer measurements are another result


@pytest.mark.usefixtures("disk_cache")
def test_configurations_with_a_hook_have_no_result_on_disk_and_are_chosen_as_ever() -> None:
    kernel = Recorded(time_ms)
    arguments = selective(40, do_bench=kernel.bench)
    configs = space(pre_hook=lambda arguments: None)
    tuner = triton.autotune(configs, key=["size"], cache_results=True, **arguments)(kernel)
    tuner.run(None, 1)
    assert tuner.best_config.kwargs == BEST
    assert len(kernel.timed) == 40


def test_compiling_ahead_compiles_all_and_tunes_nothing() -> None:
    kernel = Recorded(time_ms)
    tuner = autotuned(kernel, measurements=40)
    tuner.warmup(None, 1)
    assert len(kernel.compiled) == len(space())
    tuner.run(None, 1)
    assert tuner.best_config.kwargs == BEST
    assert len(kernel.timed) == 40


# ---------------------------------------------------------------------------------- wrong use


def test_a_single_measurement_chooses_nothing() -> None:
    with pytest.raises(SetupError, match="at least 2"):
        selective(1)


@pytest.mark.parametrize("names", [{}, {"kernel": "scale"}, {"device": GPU}])
def test_a_store_needs_names(names: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="a store needs kernel='NAME' and device="):
        selective(store=tmp_path / "t.db", **names)


# ------------------------------------------------------------------------------ a real kernel


REAL = '''
import torch
import triton
import triton.language as tl
from kernelcast.integrations.triton import selective

configs = [triton.Config({"BLOCK": 2**power}, num_warps=w) for power in range(3, 9) for w in (1, 2)]
timed = []


def count(call, quantiles):
    """The interpreter runs blocks one by one: the time is their number."""
    blocks.clear()
    call()
    timed.append(len(blocks))
    return [float(len(blocks))] * 3


blocks = []


def grid(meta):
    blocks.extend(range(triton.cdiv(300, meta["BLOCK"])))
    return (len(blocks),)


@triton.autotune(configs, key=["size"], **selective(6, do_bench=count))
@triton.jit
def double(x, out, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < size), mask=at < size)


x = torch.arange(300.0)
out = torch.empty(300)
double[grid](x, out, 300)
torch.testing.assert_close(out, 2 * x)
print(len(timed), "timed")
'''


@pytest.mark.slow
def test_a_real_kernel_is_tuned_under_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    script = tmp_path / "double.py"  # Triton reads a kernel's source from its file
    script.write_text(REAL)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "TRITON_PRINT_AUTOTUNING": "1"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, str(script)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert "6 timed" in ran.stdout
    assert "best config selected: BLOCK: 256" in ran.stdout
