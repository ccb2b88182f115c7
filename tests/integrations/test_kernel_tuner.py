"""The strategy in `kernel_tuner.tune_kernel`, on recorded times and on a C function."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("kernel_tuner", reason="needs the dependency group bench")

import kernel_tuner
from kernel_tuner.strategies.wrapper import OptAlgWrapper

from kernelcast import SetupError, read_times
from kernelcast.integrations.kernel_tuner import Kernelcast

VALUES: dict[str, Any] = {
    "block_size_x": [16, 32, 64, 128, 256],
    "tile": [1, 2, 4, 8],
    "layout": ["row", "column"],
}
BEST = {"block_size_x": 64, "tile": 4, "layout": "column"}
FLOPS = 1e9
C_SOURCE = """
extern "C" float scale(float *x, int n) {
  for (int i = 0; i < n; i++) x[i] *= 2;
  return 1.0f + (block_size_x - 64) * (block_size_x - 64) / 1000.0f + unroll;
}
"""


def time_ms(block: int, tile: int, layout: str) -> float:
    return float(
        2.0 ** (abs(math.log2(block) - 6) + 0.5 * abs(math.log2(tile) - 2))
        + 0.1 * (layout == "row")
    )


def cache(path: Path, device: str, failure: Any = "RuntimeFailedConfig") -> str:
    """A complete cache: large blocks with large tiles fail."""
    entries = {}
    for block, tile, layout in itertools.product(*VALUES.values()):
        entries[f"{block},{tile},{layout}"] = {
            "block_size_x": block,
            "tile": tile,
            "layout": layout,
            "time": failure if block * tile > 1024 else time_ms(block, tile, layout),
            "compile_time": 900.0,
            "verification_time": 0,
            "benchmark_time": 100.0,
        }
    head = {
        "device_name": device,
        "kernel_name": "gemm",
        "problem_size": [64],
        "tune_params_keys": list(VALUES),
        "tune_params": VALUES,
        "objective": "time",
    }
    # Kernel Tuner takes a file that does not end in "}}}" for one left open.
    path.write_text(json.dumps({**head, "cache": entries}, separators=(",", ":")))
    return str(path)


def tuned(strategy: Kernelcast, cache: str, max_fevals: int | None = 12, **options: Any) -> Any:
    """What `tune_kernel` measured, and the best of it, by replaying a cache."""
    results, environment = kernel_tuner.tune_kernel(
        "gemm",
        "",
        64,
        [],
        VALUES,
        strategy=OptAlgWrapper(strategy),
        strategy_options={"max_fevals": max_fevals} if max_fevals else None,
        cache=cache,
        simulation_mode=True,
        quiet=True,
        **options,
    )
    return results, environment["best_config"]


def objective(name: str, metric: Callable[[Any], float], *, higher: bool = False) -> Any:
    """The options of `tune_kernel` for another objective than time."""
    return {
        "metrics": {name: metric},
        "objective": name,
        "objective_higher_is_better": higher,
    }


def parameters(result: dict[str, Any]) -> dict[str, Any]:
    return {name: result[name] for name in VALUES}


def test_it_measures_as_much_as_it_may_and_learns_from_all_of_it(tmp_path: Path) -> None:
    strategy = Kernelcast()
    results, best = tuned(strategy, cache(tmp_path / "a.json", "A100"))
    assert len({tuple(parameters(result).values()) for result in results}) == len(results) == 12
    assert parameters(best) == BEST
    assert strategy.tuner is not None
    assert strategy.tuner.device == "A100"
    assert strategy.tuner.in_flight == ()
    assert [dict(outcome.configuration) for outcome in strategy.tuner.outcomes] == [
        parameters(result) for result in results
    ]
    for outcome, result in zip(strategy.tuner.outcomes, results, strict=True):
        assert outcome.seconds == (
            None if "__error__" in result else pytest.approx(result["time"] * 1e-3)
        )
        assert outcome.cost_s == pytest.approx(1.0)


def test_the_seed_decides_what_is_measured(tmp_path: Path) -> None:
    path = cache(tmp_path / "a.json", "A100")
    first, again, other = (
        [parameters(result) for result in tuned(Kernelcast(seed=seed), path)[0]]
        for seed in (0, 0, 1)
    )
    assert first == again != other


@pytest.mark.parametrize("failure", ["CompilationFailedConfig", 1e20, math.inf])
def test_every_form_of_failure_is_one(tmp_path: Path, failure: Any) -> None:
    strategy = Kernelcast()
    results, best = tuned(strategy, cache(tmp_path / "a.json", "A100", failure), 40)
    assert len(results) == 40
    assert parameters(best) == BEST
    assert strategy.tuner is not None
    failed = [outcome for outcome in strategy.tuner.outcomes if outcome.seconds is None]
    sizes = [int(o.configuration["block_size_x"]) * int(o.configuration["tile"]) for o in failed]
    assert len(sizes) == 2
    assert min(sizes) > 1024


def test_caches_of_other_gpus_say_where_to_begin(tmp_path: Path) -> None:
    elsewhere = cache(tmp_path / "h.json", "H100")
    for known in ([elsewhere], elsewhere, read_times([elsewhere], VALUES)):
        results, _ = tuned(Kernelcast(known=known), cache(tmp_path / "a.json", "A100"))
        assert parameters(results[0]) == BEST
    other = tmp_path / "other.json"
    head = {"kernel_name": "axpy", "device_name": "H100", "tune_params": {"x": [1]}}
    other.write_text(json.dumps({**head, "cache": {}}))
    with pytest.raises(SetupError, match="give caches of the same kernel"):
        tuned(Kernelcast(known=[other]), cache(tmp_path / "a.json", "A100"))


def test_without_a_budget_it_ends_when_nothing_is_gained(tmp_path: Path) -> None:
    strategy = Kernelcast()
    results, best = tuned(strategy, cache(tmp_path / "a.json", "A100"), None)
    assert 10 < len(results) < 40
    assert parameters(best) == BEST
    assert strategy.tuner is not None
    assert "no improvement is expected" in str(strategy.tuner.stop_reason)


def test_a_rate_is_maximised_and_any_positive_metric_minimised(tmp_path: Path) -> None:
    path = cache(tmp_path / "a.json", "A100")
    rate = objective("GFLOP/s", lambda p: FLOPS / p["time"], higher=True)
    strategy = Kernelcast()
    _, best = tuned(strategy, path, **rate)
    assert parameters(best) == BEST
    assert strategy.tuner is not None
    assert strategy.tuner.best is not None
    assert strategy.tuner.best.seconds == pytest.approx(1 / FLOPS)
    energy = objective("energy", lambda p: 10 * p["time"])
    assert parameters(tuned(strategy, path, **energy)[1]) == BEST
    for mixed in (Kernelcast(store=tmp_path / "tuning.db"), Kernelcast(known=path)):
        with pytest.raises(SetupError, match="the objective is energy, and a store or known times"):
            tuned(mixed, path, **energy)


def test_what_has_no_ratio_and_several_objectives_are_refused(tmp_path: Path) -> None:
    path = cache(tmp_path / "a.json", "A100")
    signed = objective("gain", lambda p: p["time"] - 2.0)
    with pytest.raises(SetupError, match="define a metric that is always positive"):
        tuned(Kernelcast(), path, 40, **signed)
    with pytest.raises(SetupError, match="tunes one objective, not time, gain"):
        tuned(
            Kernelcast(), path, metrics=signed["metrics"], objectives={"time": False, "gain": False}
        )


def test_a_c_function_is_tuned_and_the_next_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # Kernel Tuner leaves its sources where it runs
    strategy = Kernelcast(store=tmp_path / "tuning.db", kernel="scale")

    def measured(max_fevals: int) -> list[tuple[int, int]]:
        results, environment = kernel_tuner.tune_kernel(
            "scale",
            C_SOURCE,
            64,
            [np.ones(64, np.float32), np.int32(64)],
            {"block_size_x": np.array([16, 32, 64, 128, 256]), "unroll": [1, 2, 4]},
            restrictions=["block_size_x * unroll <= 512"],
            lang="C",
            strategy=OptAlgWrapper(strategy),
            strategy_options={"max_fevals": max_fevals},
            quiet=True,
        )
        assert environment["best_config"]["time"] == min(result["time"] for result in results)
        return [(int(result["block_size_x"]), result["unroll"]) for result in results]

    first, second = measured(4), measured(5)
    assert strategy.tuner is not None
    assert len(set(first)) == 4
    fastest = min(first, key=lambda point: (point[0] - 64) ** 2 / 1000 + point[1])
    assert second[0] == fastest, "the fastest so far is part of the second result"
    assert not set(second[1:]) & set(first)
    assert len(strategy.tuner.outcomes) == 8
