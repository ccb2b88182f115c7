"""What proposers and forecasters are asked and taught, and what their answers cost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kernelcast.backends.replay import Recorded, Recording, ReplayBackend, space_problem
from kernelcast.events import (
    Decided,
    Event,
    Inspected,
    Measured,
    Proposed,
    Reserved,
    RunSpec,
    Settled,
)
from kernelcast.farm.local import LocalFarm
from kernelcast.forecasters.roofline import RooflineForecaster
from kernelcast.parts import Parts
from kernelcast.policies import MeasureAll
from kernelcast.proposers.pool import PoolProposer
from kernelcast.proposers.template import TemplateProposer
from kernelcast.search import Search
from kernelcast.state import State
from kernelcast.store import Store
from kernelcast.testing import FAKE_DEVICE, SyntheticBackend, make_kernel, synthetic_problem
from kernelcast.thinking import is_bold
from kernelcast.types import (
    Budget,
    Effort,
    Evidence,
    Failure,
    FailureKind,
    Forecast,
    Kernel,
    Measurement,
    Observation,
    Problem,
    ProposalRequest,
    Proposals,
    Query,
    Resource,
    Spend,
    Usage,
)
from tests.test_search import make_parts, start

SEED = make_kernel(synthetic_problem().seed_source)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store.db")


@dataclass
class PaidForecaster:
    """Answers on worker threads and charges for it, as a language model does."""

    name: str = "paid"
    concurrency: int = 3
    refreshes: bool = False
    most: int = 0
    running: list[int] = field(default_factory=list)

    def quote(self, queries: Sequence[Query]) -> Spend:
        return {
            Resource.FORECAST_TOKENS: 100.0 * len(queries),
            Resource.FORECAST_USD: 0.01 * len(queries),
        }

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        free = RooflineForecaster().forecast(queries)
        usage = Usage(input_tokens=60, output_tokens=10, usd=0.004)
        return [forecast.model_copy(update={"usage": usage}) for forecast in free]

    def learn(self, observations: Sequence[Any]) -> None:
        pass


@dataclass
class Attentive(PaidForecaster):
    """Keeps what it was asked."""

    asked: list[Query] = field(default_factory=list)

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        self.asked += queries
        return super().forecast(queries)


@dataclass
class Diligent(PaidForecaster):
    """Keeps what it was taught."""

    taught: list[Observation] = field(default_factory=list)

    def learn(self, observations: Sequence[Observation]) -> None:
        self.taught += observations


def test_second_looks_are_learnt_too_and_again_when_a_run_is_resumed(store: Store) -> None:
    """The first measurement of a new best is the luckiest of many: the second one corrects it."""
    first, again = Diligent(), Diligent()
    start(store, make_parts(forecaster=first), name="x").run(Budget(measurements=12))
    measured = [
        event for event in store.open_run("x").events("measured") if isinstance(event, Measured)
    ]
    assert any(event.purpose == "confirmation" for event in measured)
    taught = [event.measurement for event in measured if event.purpose != "reference"]
    assert [observation.measurement for observation in first.taught] == taught
    Search.resume(store, "x", parts=make_parts(forecaster=again))
    assert again.taught == first.taught


class CountingBackend(SyntheticBackend):
    """Counts how often each kernel is inspected; the size of its code is that of its source."""

    def __init__(self) -> None:
        super().__init__()
        self.inspected: Counter[str] = Counter()

    def inspect(self, problem: Problem, kernel: Kernel) -> Evidence:
        self.inspected[kernel.id] += 1
        size = {"code_bytes": len(kernel.source)}
        return super().inspect(problem, kernel).model_copy(update=size)

    def measure(
        self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
    ) -> Measurement:
        return SyntheticBackend().measure(problem, kernel, seed, effort)


def assert_both_are_known(asked: Sequence[Query]) -> None:
    assert asked
    for query in asked:
        for kernel, evidence in (
            (query.candidate, query.evidence),
            (query.anchor, query.anchor_evidence),
        ):
            assert evidence is not None
            assert evidence.kernel_id == kernel.id


@pytest.mark.parametrize("concurrency", [0, 1])
def test_the_forecaster_is_told_what_compiling_shows_of_both_kernels(
    store: Store, concurrency: int
) -> None:
    backend, forecaster = CountingBackend(), Attentive(concurrency=concurrency)
    parts = make_parts(MeasureAll(), forecaster=forecaster, farm=LocalFarm(backend))
    spec = RunSpec(seed=1, inspect=True)
    start(store, parts, name="x", spec=spec).run(Budget(candidates=12))
    assert_both_are_known(forecaster.asked)
    anchors = {query.anchor.id for query in forecaster.asked}
    candidates = {query.candidate.id for query in forecaster.asked}
    assert len(anchors) > 1
    assert all(
        query.anchor_evidence and query.anchor_evidence.code_bytes == len(query.anchor.source)
        for query in forecaster.asked
    )
    # Each once: what is known of a candidate is known when it becomes an anchor.
    seed = SEED.id
    assert anchors - candidates == {seed}
    assert backend.inspected == Counter([*candidates, seed])
    log = store.open_run("x")
    inspected = [
        event.kernel_id for event in log.events("inspected") if isinstance(event, Inspected)
    ]
    assert inspected[0] == seed, "before anything is proposed"
    assert Counter(inspected) == Counter([*candidates, seed])


def test_the_forecaster_is_told_nothing_of_either_kernel_unless_they_are_inspected(
    store: Store,
) -> None:
    forecaster = Attentive()
    start(store, make_parts(forecaster=forecaster)).run(Budget(candidates=4))
    assert [(query.evidence, query.anchor_evidence) for query in forecaster.asked] == [
        (None, None)
    ] * 4


def test_an_anchor_that_does_not_compile_here_is_told_as_such(store: Store) -> None:
    class Picky(CountingBackend):
        def inspect(self, problem: Problem, kernel: Kernel) -> Evidence:
            failure = Failure(kind=FailureKind.COMPILE_ERROR, message="not here")
            broken = {"failure": None if kernel.parameters else failure}
            return super().inspect(problem, kernel).model_copy(update=broken)

    forecaster = Attentive(concurrency=0)
    parts = make_parts(MeasureAll(), forecaster=forecaster, farm=LocalFarm(Picky()))
    spec = RunSpec(seed=1, inspect=True)
    state = start(store, parts, spec=spec).run(Budget(candidates=6)).state
    seeds = [query for query in forecaster.asked if query.anchor.parameters is None]
    assert seeds
    assert all(query.anchor_evidence and query.anchor_evidence.failure for query in seeds)
    assert state.dropped == 0


class Emulating(CountingBackend):
    """Finds every third kernel wrong by emulation, at a quarter of a CPU second each."""

    def inspect(self, problem: Problem, kernel: Kernel) -> Evidence:
        failure = None
        if kernel.parameters and int(kernel.id[:6], 16) % 3 == 0:
            failure = Failure(kind=FailureKind.WRONG_RESULT, message="y[3] is 0, not 1")
        emulated = {"emulation_cpu_s": 0.25, "failure": failure}
        return super().inspect(problem, kernel).model_copy(update=emulated)


def test_what_emulation_finds_wrong_is_dropped_and_emulation_is_paid_for(store: Store) -> None:
    forecaster = Attentive(concurrency=0)
    parts = make_parts(MeasureAll(), forecaster=forecaster, farm=LocalFarm(Emulating()))
    search = start(store, parts, name="x", spec=RunSpec(seed=1, inspect=True))
    state = search.run(Budget(candidates=12)).state
    decided = [
        event.decision for event in search.log.events("decided") if isinstance(event, Decided)
    ]
    wrong = [decision for decision in decided if decision.reason == "is wrong when it is emulated"]
    assert 0 < len(wrong) < 12
    assert {decision.action for decision in wrong} == {"drop"}
    assert state.spent[Resource.CPU_S] == pytest.approx(0.25 * (1 + 12))
    assert not state.entries


def test_inspecting_for_a_gpu_goes_on_while_the_device_is_busy(store: Store) -> None:
    """The first measurement ends only when another candidate has been inspected beside it."""

    class Slow(CountingBackend):
        inspected_beside = False

        def __init__(self) -> None:
            super().__init__()
            self.device = FAKE_DEVICE.model_copy(update={"kind": "gpu"})
            self.measuring, self.beside = threading.Event(), threading.Event()

        def inspect(self, problem: Problem, kernel: Kernel) -> Evidence:
            if self.measuring.is_set():
                self.beside.set()
            return super().inspect(problem, kernel)

        def measure(
            self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
        ) -> Measurement:
            if kernel.parameters and not self.measuring.is_set():
                self.measuring.set()
                self.inspected_beside = self.beside.wait(60.0)
            return super().measure(problem, kernel, seed, effort)

    backend = Slow()
    parts = make_parts(MeasureAll(), forecaster=Attentive(concurrency=0), farm=LocalFarm(backend))
    start(store, parts, spec=RunSpec(seed=1, inspect=True)).run(Budget(measurements=6))
    assert backend.inspected_beside


def test_a_resumed_run_tells_of_both_kernels_and_decides_as_one_that_was_not_interrupted(
    tmp_path: Path,
) -> None:
    class Interrupting:
        def on_event(self, event: Event) -> None:
            if isinstance(event, Measured) and event.purpose == "search":
                raise KeyboardInterrupt

    spec = RunSpec(seed=1, inspect=True)

    def parts() -> tuple[Attentive, Parts]:
        forecaster = Attentive(concurrency=0)
        return forecaster, make_parts(MeasureAll(), forecaster=forecaster)

    with Store.open(tmp_path / "a.db") as store:
        first, before = parts()
        stopped = start(store, before, name="x", spec=spec, callbacks=[Interrupting()])
        assert stopped.run(Budget(candidates=8)).state.ended == "interrupted"
        second, after = parts()
        resumed = Search.resume(store, "x", parts=after).run(Budget(candidates=8)).state
    with Store.open(tmp_path / "b.db") as store:
        whole, undisturbed = parts()
        expected = start(store, undisturbed, name="x", spec=spec).run(Budget(candidates=8)).state
    assert_both_are_known(second.asked)
    assert [*first.asked, *second.asked] == whole.asked
    assert resumed.archive == expected.archive


@dataclass(frozen=True)
class Mending(TemplateProposer):
    """Answers a repair with another configuration, and keeps what it was asked."""

    repairs: bool = True
    name: str = "mending"
    asked: list[ProposalRequest] = field(default_factory=list)

    def propose(self, request: ProposalRequest) -> Proposals:
        self.asked.append(request)
        return super().propose(request)


class Strict(SyntheticBackend):
    """Finds two of three kernels wrong."""

    def measure(
        self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
    ) -> Measurement:
        measurement = super().measure(problem, kernel, seed, effort)
        if not kernel.parameters or int(kernel.id[:6], 16) % 3 == 0:
            return measurement
        failure = Failure(kind=FailureKind.WRONG_RESULT, message=f"case main: {kernel.id}")
        return measurement.model_copy(update={"timing": None, "failure": failure})


def test_a_proposer_is_told_of_parents_and_of_what_failed_again_after_a_crash(
    tmp_path: Path,
) -> None:
    """Repairs are at most two in a row, and a resumed run asks as one that was not stopped."""

    class Interrupting:
        def on_event(self, event: Event) -> None:
            if isinstance(event, Measured) and event.measurement.failure is not None:
                raise KeyboardInterrupt

    spec, budget = RunSpec(seed=1, inspect=True), Budget(candidates=40)

    def parts() -> tuple[Mending, Parts]:
        proposer = Mending()
        farm = LocalFarm(Strict())
        return proposer, make_parts(MeasureAll(), proposer=proposer, farm=farm)

    with Store.open(tmp_path / "a.db") as store:
        first, before = parts()
        start(store, before, name="x", spec=spec, callbacks=[Interrupting()]).run(budget)
        second, after = parts()
        resumed = Search.resume(store, "x", parts=after).run(budget).state
    with Store.open(tmp_path / "b.db") as store:
        whole, undisturbed = parts()
        search = start(store, undisturbed, name="x", spec=spec)
        state = search.run(budget).state
        measured = [e.measurement for e in search.log.events("measured") if isinstance(e, Measured)]
        proposed = [e for e in search.log.events("proposed") if isinstance(e, Proposed)]
    assert [*first.asked, *second.asked] == whole.asked
    assert (resumed.archive, resumed.sent_back) == (state.archive, state.sent_back)
    failures = {each.kernel_id: each.failure for each in measured if each.failure}
    repairs = [request.repair for request in whole.asked if request.repair]
    assert {repair.kernel.id for repair in repairs} <= set(failures)
    assert {repair.number for repair in repairs} == {1, 2}
    for repair in repairs:
        failure = failures[repair.kernel.id]
        assert failure is not None
        assert repair.complaint.endswith(failure.message)
    number = {event.kernel_id: event.repair for event in proposed if not event.duplicate}
    assert {number[repair.kernel.id] + 1 for repair in repairs} == {1, 2}
    assert all(number.get(repair.kernel.id) == repair.number - 1 for repair in repairs), (
        "the third failure in a row is not sent back"
    )
    assert all(request.parent_evidence for request in whole.asked)
    assert all(request.parent_cases for request in whole.asked if request.parent_measured)


def test_every_second_request_is_bold_while_nothing_new_comes() -> None:
    fresh, stale, barren = State(stale=7, fruitless=2), State(stale=8), State(fruitless=3)
    assert not any(is_bold(fresh, seed) for seed in range(4))
    for state in (stale, barren):
        assert [is_bold(state, seed) for seed in range(4)] == [False, True, False, True]


def test_a_recording_tells_of_both_kernels(store: Store) -> None:
    values = [{"A": value} for value in (1, 2, 4, 8)]
    seconds = [(4e-3, 0.1), (2e-3, 0.2), (1e-3, 0.4), (3e-3, 0.8)]
    entries = [Recorded(runtime_s, compile_s=compile_s) for runtime_s, compile_s in seconds]
    recording = Recording.from_rows(
        zip(values, entries, strict=True),
        problem="recorded",
        device=FAKE_DEVICE,
        language="cuda",
        source="",
        reference=values[0],
    )
    forecaster = Attentive(concurrency=0)
    parts = make_parts(
        MeasureAll(),
        proposer=PoolProposer(list(recording.configurations)),
        forecaster=forecaster,
        farm=LocalFarm(ReplayBackend(recording)),
    )
    spec = RunSpec(seed=1, inspect=True)
    Search(space_problem(recording), parts, store, spec=spec).run(Budget(measurements=4))
    assert_both_are_known(forecaster.asked)
    compile_s = {
        query.anchor_evidence.compile_s for query in forecaster.asked if query.anchor_evidence
    }
    assert 0.1 in compile_s
    assert len(compile_s) > 1


def test_every_token_and_dollar_is_in_the_ledger(store: Store) -> None:
    parts = make_parts(forecaster=PaidForecaster())
    state = start(store, parts, name="x").run(Budget(candidates=15)).state
    assert state.considered == 15
    assert state.spent[Resource.FORECAST_TOKENS] == 15 * 70
    assert state.spent[Resource.FORECAST_USD] == pytest.approx(15 * 0.004)
    log = store.open_run("x")
    reserved = {e.entry for e in log.events("reserved") if isinstance(e, Reserved)}
    settled = [e.entry for e in log.events("settled") if isinstance(e, Settled)]
    assert sorted(settled) == sorted(reserved)
    ledger = log.ledger()
    assert ledger[Resource.FORECAST_TOKENS].spent == 15 * 70


def test_a_cap_on_forecast_dollars_ends_the_run_before_it_is_passed(store: Store) -> None:
    parts = make_parts(forecaster=PaidForecaster())
    state = start(store, parts).run(Budget(forecast_usd=0.1, measurements=50)).state
    assert state.spent.get(Resource.FORECAST_USD, 0.0) <= 0.1
    assert state.ended is not None
    assert "forecast_usd" in state.ended


def test_a_model_call_in_flight_at_a_crash_is_charged_at_its_reservation(store: Store) -> None:
    search = start(store, make_parts(forecaster=PaidForecaster()), name="x")
    search.begin(Budget(candidates=5))
    promised = {Resource.FORECAST_TOKENS: 100.0, Resource.FORECAST_USD: 0.01}
    store.open_run("x").append([Reserved(entry="forecast-9", spend=promised)])
    Search.resume(store, "x", parts=make_parts())
    log = store.open_run("x")
    (settled,) = [e for e in log.events("settled") if isinstance(e, Settled)]
    assert settled.unknown
    assert log.state.spent == promised


def test_slow_proposers_are_asked_at_once_and_their_answers_used_as_they_come(
    store: Store,
) -> None:
    barrier = threading.Barrier(2, timeout=300)

    @dataclass(frozen=True)
    class Slow(TemplateProposer):
        concurrency: int = 2
        name: str = "slow"

        def propose(self, request: ProposalRequest) -> Proposals:
            # Passes only if two requests are in flight together.
            if request.ordinal < 2:
                barrier.wait()
            return super().propose(request)

    parts = make_parts(MeasureAll(pool_size=2), proposer=Slow())
    state = start(store, parts, name="x").run(Budget(candidates=8)).state
    proposed = [e for e in store.open_run("x").events("proposed") if isinstance(e, Proposed)]
    assert state.considered == 8
    assert len({event.request for event in proposed}) >= 8
