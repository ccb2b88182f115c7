"""Arms compared: what is resumed, what each pays, what is proven."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.errors import SetupError, StoreError
from kernelcast.events import ComponentSpec, Measured, RunSpec
from kernelcast.farm.local import LocalFarm
from kernelcast.judge.comparison import TIE_LOG2, Comparison, Cost, Outcome, Paired, Plan, run_plan
from kernelcast.parts import Parts
from kernelcast.search import INTERRUPTED, Search
from kernelcast.store import Store
from kernelcast.testing import (
    SyntheticBackend,
    make_kernel,
    synthetic_problem,
)
from kernelcast.types import (
    Budget,
    Effort,
    Kernel,
    Measurement,
    Problem,
    Resource,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "compared.db") as opened:
        yield opened


class NoisyBackend(SyntheticBackend):
    """Made-up speeds with noise; it counts what it measures."""

    measured = 0

    def measure(
        self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
    ) -> Measurement:
        self.measured += 1
        exact = super().measure(problem, kernel, seed, effort)
        if exact.timing is None:
            return exact
        noisy = exact.timing.log2_speedup + 0.1 * math.sin(self.measured)
        timing = exact.timing.model_copy(update={"log2_speedup": noisy})
        return exact.model_copy(update={"timing": timing, "device_s": 0.01 * self.measured})


def two_arms(seeds: int = 2, measurements: int = 8) -> Plan:
    fixed = {"forecaster": ComponentSpec(name="roofline")}
    small = ComponentSpec(name="top_k", options={"pool_size": 8, "k": 2})
    return Plan(
        problem=synthetic_problem(),
        arms={
            "top_k": {**fixed, "policy": small},
            "measure_all": {**fixed, "policy": ComponentSpec(name="measure_all")},
        },
        seeds=seeds,
        measurements=measurements,
    )


def told(store: Store, outcome: Outcome) -> dict[tuple[str, str], Measurement]:
    """What a run was told of each kernel, by purpose."""
    return {
        (event.purpose, event.measurement.kernel_id): event.measurement
        for event in store.open_run(outcome.run).events("measured")
        if isinstance(event, Measured)
    }


def test_arms_share_proposals_and_noise_and_each_pays(store: Store) -> None:
    backend = NoisyBackend()
    plan = two_arms(measurements=20)
    found = run_plan(plan, LocalFarm(backend), store)
    assert found.complete
    assert found.seeds == (0, 1)
    charged = 0
    for seed in found.seeds:
        ours, theirs = (told(store, each) for each in found.outcomes if each.seed == seed)
        assert ours.keys() & theirs.keys()
        assert all(ours[key] == theirs[key] for key in ours.keys() & theirs.keys())
        charged += len(ours) + len(theirs)
    assert backend.measured < charged
    for outcome in found.outcomes:
        state = store.open_run(outcome.run).state
        measurements = told(store, outcome).values()
        assert outcome.measured == state.spent[Resource.MEASUREMENTS] == 20
        assert state.cached == 0
        assert outcome.cost.device_s == pytest.approx(sum(each.device_s for each in measurements))
        assert outcome.curve[-1] == pytest.approx(outcome.log2_speedup)
        assert outcome.improvements[-1][1] == pytest.approx(outcome.log2_speedup)
    first = {seed: told(store, found.of("top_k")[seed])[REFERENCE] for seed in found.seeds}
    assert first[0] != first[1]  # noise is not shared across seeds


def test_a_proposer_that_follows_its_run_learns_in_a_comparison(store: Store) -> None:
    problem = synthetic_problem()
    arms = {name: {"proposer": ComponentSpec(name=name)} for name in ("tuner", "template")}
    plan = Plan(problem=problem, arms=arms, seeds=1, measurements=12)
    tuned = run_plan(plan, LocalFarm(SyntheticBackend()), store).of("tuner")[0]
    parts = replace(Parts.build({}, problem), farm=LocalFarm(SyntheticBackend()))
    alone = Search(problem, parts, store, spec=RunSpec(reuse=False), name="alone")
    alone.run(Budget(measurements=12))
    in_comparison = store.open_run(tuned.run).state.archive.keys()
    assert in_comparison == store.open_run("alone").state.archive.keys()


REFERENCE = ("reference", make_kernel(synthetic_problem().seed_source).id)


def test_complete_runs_are_not_run_again(store: Store) -> None:
    plan = two_arms()
    found = run_plan(plan, LocalFarm(SyntheticBackend()), store)

    def never(search: Search, budget: Budget, title: str) -> None:
        raise AssertionError(f"{title} ran again")

    assert run_plan(plan, LocalFarm(SyntheticBackend()), store, run=never) == found
    titles: list[str] = []

    def told_by(search: Search, budget: Budget, title: str) -> None:
        titles.append(title)
        search.run(budget)

    more = two_arms(seeds=3)
    longer = run_plan(more, LocalFarm(SyntheticBackend()), store, run=told_by)
    assert titles == [
        "synthetic, top_k, seed 3 of 3",
        "synthetic, measure_all, seed 3 of 3",
    ]
    assert longer.outcomes[:4] == found.outcomes
    assert two_arms(measurements=9).run_name("top_k", 0, LocalFarm(SyntheticBackend())) not in {
        info.name for info in store.runs()
    }


def test_an_interrupted_comparison_goes_on_to_the_same_end(store: Store, tmp_path: Path) -> None:
    plan = two_arms()
    with Store.open(tmp_path / "whole.db") as other:
        whole = run_plan(plan, LocalFarm(SyntheticBackend()), other)

    class Interrupted(SyntheticBackend):
        left = 25

        def measure(self, *arguments: Any, **options: Any) -> Measurement:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            return super().measure(*arguments, **options)

    cut = run_plan(plan, LocalFarm(Interrupted()), store)
    assert not cut.complete
    assert store.runs()
    assert store.open_run(store.runs()[-1].name).state.ended == INTERRUPTED
    assert "no verdict" in cut.at_equal_measurements("top_k").verdict("top_k", "measure_all")

    resumed = run_plan(plan, LocalFarm(SyntheticBackend()), store)
    assert resumed.complete

    def outcomes(found: Comparison) -> list[tuple[Any, ...]]:
        return [(each.arm, each.seed, each.kernel_id, each.curve) for each in found.outcomes]

    assert outcomes(resumed) == outcomes(whole)


def test_a_killed_run_is_made_anew_from_what_it_had_measured(store: Store) -> None:
    plan, backend = two_arms(seeds=1), NoisyBackend()
    farm = LocalFarm(backend)

    def killed(search: Search, budget: Budget, title: str) -> None:
        search.begin(budget)
        for _ in range(4):
            job = search.ask()
            assert job is not None
            search.tell(job, backend.measure(search.problem, job.kernel, job.seed, job.effort))
        raise SystemExit

    with pytest.raises(SystemExit):
        run_plan(plan, farm, store, run=killed)
    (cut,) = store.runs()
    before = [
        event.measurement
        for event in store.open_run(cut.name).events("measured")
        if isinstance(event, Measured)
    ]
    assert len(before) == backend.measured == 4
    found = run_plan(plan, farm, store)
    anew = found.of("top_k")[0]
    assert anew.run == f"{cut.name}-2"
    measured = told(store, anew).values()
    assert all(each in measured for each in before)
    together = {**told(store, anew), **told(store, found.of("measure_all")[0])}
    assert backend.measured == len(together)  # nothing was measured twice
    farm.close()


def test_one_arm_is_no_comparison() -> None:
    with pytest.raises(SetupError, match="two arms"):
        Plan(synthetic_problem(), {"only": {}})


# --------------------------------------------------------------------------------- what it proves


def outcome(arm: str, seed: int, log2: float, *course: tuple[float, float]) -> Outcome:
    steps = tuple((Cost(device_s=at), best) for at, best in course)
    last = steps[-1][0] if steps else Cost(device_s=3600.0)
    return Outcome(arm, seed, f"{arm}-{seed}", "k", log2, (log2,), steps, last, 5, 1)


def test_differences_are_taken_seed_by_seed_over_complete_seeds() -> None:
    found = Comparison(
        two_arms(seeds=3),
        (
            outcome("measure_all", 0, 1.0),
            outcome("top_k", 1, 3.0),
            outcome("top_k", 0, 1.5),
            outcome("measure_all", 1, 2.0),
            outcome("top_k", 2, 9.0),
        ),
    )
    assert found.seeds == (0, 1)
    assert not found.complete
    pair = found.at_equal_measurements("top_k")
    assert pair.differences == (0.5, 1.0)
    assert pair.mean == pytest.approx(0.75)
    assert pair.high - pair.mean == pytest.approx(12.706 * 0.25, rel=1e-3)


def test_at_equal_cost_the_dearer_arm_is_stopped_where_the_cheaper_ended() -> None:
    found = Comparison(
        two_arms(seeds=1),
        (
            outcome("top_k", 0, 2.0, (10.0, 0.5), (100.0, 2.0)),
            outcome("measure_all", 0, 1.0, (5.0, 0.75), (20.0, 1.0)),
        ),
    )
    assert found.at_equal_measurements("top_k").differences == (1.0,)
    assert found.at_equal_cost("top_k", 1.0).differences == (-0.5,)


def test_costs_add_up_in_dollars() -> None:
    cost = Cost() + {Resource.DEVICE_S: 1800.0, Resource.MEASUREMENTS: 1.0}
    cost += {Resource.FORECAST_USD: 0.5, Resource.FORECAST_TOKENS: 99.0}
    cost += {Resource.PROPOSAL_USD: 0.25}
    assert cost == Cost(device_s=1800.0, forecast_usd=0.5, proposal_usd=0.25)
    assert cost.usd(2.0) == pytest.approx(1.75)


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        ([0.5] * 5 + [0.6] * 5, "a finds faster kernels than b: 1.464x"),
        ([-0.5] * 5 + [-0.6] * 5, "a finds slower kernels than b"),
        ([0.001, -0.001] * 5, "a and b find the same, within 2%"),
        ([0.0] * 10, "a and b find the same, within 2%: 1.000x (1.000x to 1.000x)"),
        ([0.3, -0.2] * 5, "no verdict between a and b"),
        ([0.3, -0.2] * 5, "won 5, tied 0 and lost 5 of 10 seeds"),
        ([0.3, -0.2] * 5, "about 107 seeds would settle"),
        ([0.3, -0.29] * 5, "more seeds would hardly tell them apart"),
        ([0.5, 0.6], "2 seeds are few"),
        ([0.5], "no verdict: 1 seeds"),
        ([], "no verdict: 0 seeds"),
    ],
)
def test_the_verdict_says_what_is_proven_and_when_nothing_is(
    differences: list[float], words: str
) -> None:
    assert words in Paired.of(differences).verdict("a", "b")


@given(st.lists(st.floats(-3.0, 3.0), min_size=2, max_size=20))
def test_a_pair_turned_round_is_the_same_pair(differences: list[float]) -> None:
    pair, turned = Paired.of(differences), Paired.of([-each for each in differences])
    assert pair.low <= pair.mean <= pair.high
    assert (pair.wins, pair.ties, pair.losses) == (turned.losses, turned.ties, turned.wins)
    assert pair.wins + pair.ties + pair.losses == len(differences)
    assert (pair.low, pair.high) == pytest.approx((-turned.high, -turned.low), abs=1e-9)
    said, said_turned = pair.verdict("a", "b"), turned.verdict("a", "b")
    assert ("faster" in said) == ("slower" in said_turned)
    assert ("no verdict" in said) == ("no verdict" in said_turned)


def test_between_equal_arms_a_verdict_is_rare() -> None:
    """A/A comparisons of ten seeds: one in twenty may claim a difference, no more."""
    rng = np.random.default_rng(0)
    draws: list[Callable[[], Any]] = [
        lambda: rng.normal(0.0, 0.3, 10),
        lambda: rng.normal(0.0, 0.3, 10) * (rng.random(10) < 0.5),  # half of the seeds tie
        lambda: rng.standard_t(3, 10) * 0.2,
    ]
    for draw in draws:
        claims = ["finds" in Paired.of(draw()).verdict("a", "b") for _ in range(1000)]
        assert sum(claims) <= 70


def test_several_challengers_widen_the_intervals() -> None:
    arms = {name: two_arms().arms["top_k"] for name in ("a", "b", "c", "base")}
    runs = tuple(
        outcome(name, seed, seed * place * 0.1)
        for place, name in enumerate(arms)
        for seed in range(4)
    )
    found = Comparison(Plan(synthetic_problem(), arms, seeds=4), runs)
    assert found.challengers == ["a", "b", "c"]
    alone = Paired.of(found.at_equal_measurements("a").differences)
    assert found.at_equal_measurements("a").high > alone.high


def test_a_tie_is_two_percent() -> None:
    pair = Paired.of([0.9 * TIE_LOG2, 1.1 * TIE_LOG2, -1.1 * TIE_LOG2, 0.0])
    assert (pair.wins, pair.ties, pair.losses) == (1, 2, 1)


def test_runs_that_were_not_written_here_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = two_arms(seeds=1, measurements=2)
    with Store.open(tmp_path / "store.db") as store:
        run_plan(plan, LocalFarm(SyntheticBackend()), store)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    backend = NoisyBackend()
    with (
        Store.open(tmp_path / "store.db") as store,
        pytest.raises(StoreError, match=r"was not written here.*--trust-store"),
    ):
        run_plan(plan, LocalFarm(backend), store)
    assert backend.measured == 0
