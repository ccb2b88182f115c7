"""Helion finds the search by its name, and it measures the neighbours that are forecast to be fast.

Everything but the GPU is Helion's own: where it would time a kernel, a formula gives the time.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import helion
import helion.language as hl
import numpy as np
import pytest
import torch
from helion.autotuner import (
    EnumFragment,
    IntegerFragment,
    LFBOTreeSearch,
    ListOf,
    PowerOfTwoFragment,
    autotune,
    benchmark_provider,
)
from helion.autotuner.base_search import BenchmarkResult, PopulationMember
from helion.autotuner.config_fragment import BooleanFragment, PermutationFragment
from helion.autotuner.external import _ExternalKernelAdapter, create_user_config_spec

import _by_helion as bench
from _data import Space
from kernelcast.integrations.helion import KernelcastSearch

# scikit-learn says so of the threads of its own forest, now and then.
pytestmark = pytest.mark.filterwarnings("ignore:`sklearn.utils.parallel.delayed`:UserWarning")

TUNABLES = {
    "block": PowerOfTwoFragment(16, 1024, 64),
    "tile": IntegerFragment(1, 16, 1),
    "unroll": BooleanFragment(),
    "order": PermutationFragment(3),
    "load": ListOf(EnumFragment(("pointer", "descriptor")), length=2),
    "evict": EnumFragment((None, "first", "last")),
}
CPU = torch.device("cpu")


def recorded_ms(config: Any) -> float:
    """The time of a configuration; infinite where it fails."""
    if config["block"] * config["tile"] > 4096:
        return math.inf
    slowness = abs(math.log2(config["block"] / 256)) + abs(config["tile"] - 6) / 3
    slowness += 0.4 * config["unroll"] + 0.3 * abs(config["order"][0] - 1)
    slowness += 0.5 * config["load"].count("pointer") + 0.2 * (config["evict"] != "last")
    return 0.1 * float(2**slowness)


def search_of(cls: Any, tunables: dict[str, Any] | None = None) -> Any:
    spec = create_user_config_spec(tunables or TUNABLES)
    kernel = _ExternalKernelAdapter(
        spec, lambda _: print, (), device=CPU, autotune_log_level=logging.CRITICAL
    )
    return cls(kernel, ())


def members_of(search: Any, count: int, seed: int = 0) -> list[Any]:
    """So many different configurations that Helion draws."""
    random.seed(seed)
    members: dict[Any, Any] = {}
    while len(members) < count:
        flat = search.config_gen.random_flat()
        member = PopulationMember(print, [], flat, search.config_gen.unflatten(flat))
        members.setdefault(member.config, member)
    return list(members.values())


def learn(search: Any, members: Sequence[Any], time: Callable[[Any], float] = recorded_ms) -> None:
    for member in members:
        member.perfs.append(time(member.config))
        encoded = search.config_gen.encode_config(member.flat_values)
        search._append_training_sample(encoded, member.perf, member.config, print, member)
    search._fit_surrogate()


def share_kept(kept: Sequence[Any], candidates: Sequence[Any], fastest: int = 10) -> float:
    """The share of the fastest candidates that are among the kept ones."""
    ordered = sorted(candidates, key=lambda member: recorded_ms(member.config))
    return sum(any(member is each for each in kept) for member in ordered[:fastest]) / fastest


@helion.kernel(backend="pallas", autotune_effort="quick")  # type: ignore[untyped-decorator]
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(out.size()):
        out[tile] = x[tile] + y[tile]
    return out


def test_helion_finds_the_search_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_PALLAS_INTERPRET", "1")  # the backend that needs no GPU
    arguments = (torch.zeros(64, 64), torch.zeros(64, 64))
    bound = add.bind(arguments)
    usual = bound.settings.autotuner_fn(bound, arguments).autotuner
    monkeypatch.setenv("HELION_AUTOTUNER", "KernelcastSearch")
    found = bound.settings.autotuner_fn(bound, arguments).autotuner
    assert type(usual) is LFBOTreeSearch
    assert type(found) is KernelcastSearch
    effort = ("initial_population", "copies", "max_generations", "finishing_rounds")
    assert [getattr(found, name) for name in effort] == [getattr(usual, name) for name in effort]
    assert found.max_generations == 5  # of the quick effort


def test_a_whole_search_ends_at_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def timed(kernel: Callable[[], float], **_: object) -> float:
        measured.append(kernel())
        return measured[-1]

    def compiled(config: Any) -> Callable[..., float]:
        ms = recorded_ms(config)
        if math.isinf(ms):
            raise RuntimeError("too many threads")
        return lambda: ms

    monkeypatch.setattr(benchmark_provider, "do_bench", timed)
    best = autotune(
        TUNABLES,
        compiled,
        (),
        baseline_fn=lambda: None,
        algorithm="KernelcastSearch",
        device=CPU,
        initial_population=40,
        copies=2,
        max_generations=5,
        polish_rounds=0,  # which would find it without any forecast
        autotune_accuracy_check=False,
        autotune_benchmark_fn=lambda kernels, **_: [kernel() for kernel in kernels],
        autotune_ignore_errors=True,
        autotune_log_level=logging.CRITICAL,
        autotune_progress_bar=False,
        autotune_random_seed=1,
    )
    assert recorded_ms(best) == pytest.approx(0.1)
    assert len(measured) < 120  # of 7 * 16 * 2 * 6 * 4 * 3


def test_it_keeps_more_of_the_fastest_than_the_forest() -> None:
    shares = []
    for seed in range(2):
        kept = []
        for cls in (KernelcastSearch, LFBOTreeSearch):
            search = search_of(cls)
            members = members_of(search, 300, seed)
            learn(search, members[:100])
            candidates = members[100:]
            kept.append(share_kept(search._surrogate_select(candidates, 20), candidates))
        shares.append(kept)
    ours, forest = np.mean(shares, axis=0)
    assert ours > forest
    assert ours > 0.6


def test_failures_are_avoided() -> None:
    search = search_of(KernelcastSearch)
    members = members_of(search, 300)
    learn(search, members[:100])
    kept = search._surrogate_select(members[100:], 40)
    failing = sum(math.isinf(recorded_ms(member.config)) for member in members[100:]) / 200
    assert failing > 0.1
    # What is drawn at random may fail.
    assert sum(math.isinf(recorded_ms(member.config)) for member in kept) <= 2


def test_seeded_results_are_learnt() -> None:
    search = search_of(KernelcastSearch)
    members = members_of(search, 300)
    search.seed_training_data(
        [
            BenchmarkResult(
                config=member.config,
                fn=print,
                perf=recorded_ms(member.config),
                status="ok",
                compile_time=None,
            )
            for member in members[:100]
        ]
    )
    search._fit_surrogate()
    kept = search._surrogate_select(members[100:], 20)
    assert share_kept(kept, members[100:]) > 0.6


def test_a_share_is_drawn_at_random() -> None:
    search = search_of(KernelcastSearch, {"x": IntegerFragment(1, 400, 1)})
    members = sorted(members_of(search, 400), key=lambda member: member.flat_values)
    measured = members[::4]
    learn(search, measured, lambda config: float(config["x"]))
    fresh = [member for member in members if not member.perfs]
    kept = search._surrogate_select(fresh, 40)
    assert len({id(member) for member in kept}) == 40
    assert max(member.config["x"] for member in kept[:38]) < 70
    assert max(member.config["x"] for member in kept[38:]) > 70
    # Every process of a distributed kernel draws the same.
    assert kept == search._surrogate_select(fresh, 40)


def test_measured_candidates_are_kept_and_count() -> None:
    search = search_of(KernelcastSearch)
    members = members_of(search, 60)
    learn(search, members[:40])
    incumbent, fresh = members[7], members[40:]
    kept = search._surrogate_select([*fresh, incumbent], 3)
    assert kept[0] is incumbent
    assert len(kept) == 3
    assert search._surrogate_select([incumbent, *fresh], 1) == [incumbent]
    assert search._surrogate_select([incumbent, *fresh], 0) == []
    assert search._surrogate_select([], 2) == []
    assert len(search._surrogate_select([incumbent, *fresh], 100)) == 21


def test_before_any_time_helion_chooses() -> None:
    search = search_of(KernelcastSearch)
    members = members_of(search, 30)
    learn(search, members[:10], lambda config: math.inf)
    assert len(search._surrogate_select(members[10:], 5)) == 5


def test_it_learns_from_very_many() -> None:
    search = search_of(KernelcastSearch)
    members = members_of(search, 1100)
    learn(search, members[:900])
    kept = search._surrogate_select(members[900:], 20)
    assert share_kept(kept, members[900:]) > 0.8


def test_the_bench_keeps_candidates_of_a_recorded_space() -> None:
    values = list(itertools.product(range(10), range(20), "ab"))
    points: list[dict[str, int | float | str]] = [
        {"block": 2**block, "tile": tile, "mode": mode} for block, tile, mode in values
    ]
    times_ms = np.array([1.0 + 2**block / 9 + tile for block, tile, _ in values])
    times_ms[::9] = np.inf
    space = Space(
        problem="recorded",
        family="recorded",
        gpu="NVIDIA A100",
        vendor="nvidia",
        parameters=("block", "mode", "tile"),
        configurations=tuple(points),
        keys=tuple(map(str, points)),
        runtime_ms=times_ms,
        device_s=None,
    )
    for cls in (KernelcastSearch, LFBOTreeSearch):
        kept = bench.chosen(cls, space, range(100), range(100, 300))
        assert len(set(kept)) == bench.KEPT
        assert set(kept) <= set(range(100, 300))
    ours, forest = bench.recalls_of(space, seed=0)
    assert 0.0 < forest <= 1.0
    assert 0.0 < ours <= 1.0
