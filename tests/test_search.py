"""The loop on the synthetic backend: ask/tell, budgets, resume, audits, reproducibility."""

from __future__ import annotations

import _thread
import ast
import os
import signal
import threading
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import kernelcast
from kernelcast import plugins
from kernelcast.errors import SetupError
from kernelcast.events import (
    Decided,
    Event,
    Measured,
    RunSpec,
)
from kernelcast.farm.local import LocalFarm
from kernelcast.forecasters.trees import TreesForecaster
from kernelcast.parts import Parts
from kernelcast.policies import MeasureAll, Selective, TopK
from kernelcast.proposers.template import TemplateProposer
from kernelcast.protocols import Farm, Forecaster, Policy, Proposer
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.strategies import Puct
from kernelcast.testing import FAKE_DEVICE, SyntheticBackend, synthetic_problem
from kernelcast.types import (
    Budget,
    Effort,
    Failure,
    FailureKind,
    Kernel,
    Measurement,
    Problem,
    ProposalRequest,
    Proposals,
    Resource,
    Spend,
)


def make_parts(
    policy: Policy | None = None,
    *,
    proposer: Proposer | None = None,
    forecaster: Forecaster | None = None,
    farm: Farm | None = None,
) -> Parts:
    return Parts(
        proposer=proposer or TemplateProposer(),
        forecaster=forecaster or TreesForecaster(),
        policy=policy or Selective(pool_size=12, turnover=4),
        strategy=Puct(),
        farm=farm or LocalFarm(SyntheticBackend()),
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store.db")


class Flattering(SyntheticBackend):
    """First measurements are half an octave too good, second ones right."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def measure(
        self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
    ) -> Measurement:
        honest = super().measure(problem, kernel, seed)
        self.seen[kernel.id] += 1
        if honest.timing is None or self.seen[kernel.id] > 1:
            return honest
        flattered = honest.timing.model_copy(
            update={"log2_speedup": honest.timing.log2_speedup + 0.5}
        )
        return honest.model_copy(update={"timing": flattered})


def start(store: Store, parts: Parts | None = None, **options: Any) -> Search:
    spec = options.pop("spec", RunSpec(seed=1))
    return Search(synthetic_problem(), parts or make_parts(), store, spec=spec, **options)


def test_a_search_finds_a_faster_kernel_and_stays_within_its_budget(location: str) -> None:
    with Store.open(location) as store:
        result = start(store).run(Budget(measurements=20))
    state = result.state
    assert result.confirmed
    assert result.log2_speedup > 2.0
    assert state.measured == 20 == state.spent[Resource.MEASUREMENTS]
    assert state.ended == "budget spent: all measurements made"
    assert state.considered > state.measured
    assert state.considered == state.measured + state.dropped + state.trusted + len(
        state.open
    ) + len(state.pending)


def test_the_best_is_reported_by_its_second_measurement(store: Store) -> None:
    result = start(store, make_parts(farm=LocalFarm(Flattering()))).run(Budget(measurements=15))
    honest = SyntheticBackend().measure(synthetic_problem(), result.kernel, 0)
    assert result.log2_speedup == honest.log2_speedup


def test_ask_and_tell_do_what_run_does(tmp_path: Path) -> None:
    backend = SyntheticBackend()
    with Store.open(tmp_path / "a.db") as store:
        stepped = start(store, name="x")
        stepped.begin(Budget(measurements=12))
        while (job := stepped.ask()) is not None:
            measured = backend.measure(stepped.problem, job.kernel, job.seed, job.effort)
            stepped.tell(job, measured)
        by_hand = [event for event in store.open_run("x").events() if isinstance(event, Measured)]
    with Store.open(tmp_path / "b.db") as store:
        start(store, name="x").run(Budget(measurements=12))
        by_run = [event for event in store.open_run("x").events() if isinstance(event, Measured)]
    assert [e.measurement for e in by_hand] == [e.measurement for e in by_run]


def test_a_time_or_a_failure_is_all_that_has_to_be_told(store: Store) -> None:
    """A person measures: each job's seconds are told, and nothing else."""
    backend = SyntheticBackend()
    search = start(store, name="by hand")
    search.begin(Budget(measurements=12))
    failed = 0
    while (job := search.ask()) is not None:
        timing = backend.measure(search.problem, job.kernel, job.seed).timing
        if timing is None or (job.purpose == "search" and failed < 2):
            failed += 1
            search.tell(job, failure="wrong_result" if failed == 1 else "it ate the disk")
        else:
            search.tell(job, seconds=timing.runtime_s, cost_s=0.5)
    result, state = search.result, search.state
    assert result.confirmed
    honest = backend.measure(search.problem, result.kernel, 0)
    assert result.log2_speedup == pytest.approx(honest.log2_speedup, abs=0.02)
    assert state.measured == 12
    assert state.spent[Resource.DEVICE_S] == 0.5 * (state.kinds["measured"] - failed)
    failures = [
        event.measurement.failure
        for event in search.log.events("measured")
        if isinstance(event, Measured) and event.measurement.failure
    ]
    assert [failure.kind for failure in failures[:2]] == ["wrong_result", "crash"]
    assert failures[1].message == "it ate the disk"
    # What a person states is not in the cache that runs share.
    again = start(store, name="again")
    again.begin(Budget(measurements=12))
    assert again.ask() is not None
    assert not again.state.kinds["measured"]


def test_what_is_told_of_a_job_is_checked(store: Store) -> None:
    search = start(store)
    search.begin(Budget(measurements=3))
    job = search.ask()
    assert job is not None
    with pytest.raises(SetupError, match="tell one of these"):
        search.tell(job)
    with pytest.raises(SetupError, match="tell one of these"):
        search.tell(job, seconds=1.0, failure="crash")
    with pytest.raises(SetupError, match=r"seconds is -1\.0"):
        search.tell(job, seconds=-1.0)
    with pytest.raises(SetupError, match="the seed kernel of problem"):
        search.tell(job, failure="crash")


def test_the_same_seed_makes_the_same_decisions_and_another_seed_others(tmp_path: Path) -> None:
    def decisions(folder: str, seed: int) -> list[Event]:
        with Store.open(tmp_path / folder) as store:
            start(store, name="x", spec=RunSpec(seed=seed)).run(Budget(measurements=10))
            return list(store.open_run("x").events("decided", "proposed"))

    assert decisions("a.db", 1) == decisions("b.db", 1)
    assert decisions("a2.db", 2) != decisions("b2.db", 3)


@pytest.mark.parametrize("policy", [MeasureAll(), TopK(k=3, pool_size=9), Selective(pool_size=9)])
def test_every_policy_runs_on_the_same_loop_and_spends_the_same(
    store: Store, policy: Policy
) -> None:
    state = start(store, make_parts(policy)).run(Budget(measurements=9)).state
    assert state.measured == 9


def test_a_run_resumes_with_a_larger_budget_and_learns_its_history_again(store: Store) -> None:
    start(store, name="x").run(Budget(measurements=8))
    again = Search.resume(store, "x", parts=make_parts())
    result = again.run(Budget(measurements=16))
    assert result.state.measured == 16
    assert result.state == store.open_run("x").replay()


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    class Interrupting:
        def on_event(self, event: Event) -> None:
            if isinstance(event, Measured) and event.purpose == "search":
                raise KeyboardInterrupt

    with Store.open(tmp_path / "a.db") as store:
        first = start(store, name="x", callbacks=[Interrupting()])
        assert first.run(Budget(measurements=10)).state.ended == "interrupted"
        resumed = Search.resume(store, "x", parts=make_parts()).run(Budget(measurements=10)).state
    with Store.open(tmp_path / "b.db") as store:
        whole = start(store, name="x").run(Budget(measurements=10)).state
    assert resumed.archive == whole.archive
    assert resumed.measured == whole.measured == 10


def test_a_killed_run_is_not_charged_for_what_was_in_flight(location: str) -> None:
    """A real SIGKILL in the middle of a measurement, in a real process."""

    class Deadly(SyntheticBackend):
        def measure(
            self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
        ) -> Measurement:
            if kernel.parameters:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().measure(problem, kernel, seed)

    child = os.fork()
    if child == 0:
        with Store.open(location) as store:
            start(store, make_parts(farm=LocalFarm(Deadly())), name="x").run(Budget(measurements=5))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    with Store.open(location) as store:
        assert store.open_run("x").state.reserved(Resource.MEASUREMENTS) == 1
        state = Search.resume(store, "x", parts=make_parts()).run(Budget(measurements=5)).state
        assert state.measured == 5 == state.spent[Resource.MEASUREMENTS]
        assert state.entries == {}


def test_another_runs_measurements_are_used_and_cost_nothing(store: Store) -> None:
    start(store, name="first").run(Budget(measurements=10))
    second = start(store, name="second").run(Budget(measurements=3)).state
    assert second.cached >= 1
    assert second.spent[Resource.MEASUREMENTS] == 3
    unshared = start(store, name="third", spec=RunSpec(seed=1, reuse=False))
    assert unshared.run(Budget(measurements=3)).state.cached == 0


def test_what_does_not_compile_is_dropped_before_hardware_is_spent(store: Store) -> None:
    @dataclass(frozen=True)
    class Broken(TemplateProposer):
        def propose(self, request: ProposalRequest) -> Proposals:
            kernels = tuple(
                kernel.model_copy(update={"source": "// nothing here"})
                for kernel in super().propose(request).kernels
            )
            return Proposals(kernels=kernels)

    parts = make_parts(proposer=Broken())
    state = start(store, parts, spec=RunSpec(inspect=True)).run(Budget(candidates=20)).state
    assert state.measured == 0
    assert state.dropped == 20


def test_a_seed_kernel_that_fails_is_a_broken_set_up(store: Store) -> None:
    class Failing(SyntheticBackend):
        def measure(
            self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
        ) -> Measurement:
            failure = Failure(kind=FailureKind.WRONG_RESULT, message="y[0] is wrong")
            return (
                super()
                .measure(problem, kernel, seed)
                .model_copy(update={"timing": None, "failure": failure})
            )

    with pytest.raises(SetupError, match=r"seed kernel .*wrong_result.*y\[0\]"):
        start(store, make_parts(farm=LocalFarm(Failing()))).run(Budget(measurements=5))


def test_a_proposer_that_has_nothing_new_ends_the_run(store: Store) -> None:
    problem = synthetic_problem()
    template = problem.template
    assert template is not None
    small = template.model_copy(update={"parameters": {"A": (1, 2), "B": (1, 2, 4)}})
    search = Search(problem.model_copy(update={"template": small}), make_parts(), store)
    state = search.run(Budget(measurements=50)).state
    assert state.considered == 6
    assert state.ended == "nothing left to try"
    assert state.open == {}


def test_a_proposer_that_does_not_answer_ends_the_run_and_the_reason_is_told(store: Store) -> None:
    class Silent(TemplateProposer):
        def propose(self, request: ProposalRequest) -> Proposals:
            return Proposals(kernels=(), failure=f"no answer to {request.parent.id}")

    state = start(store, make_parts(proposer=Silent())).run(Budget(measurements=5)).state
    assert state.ended == f"nothing left to try: no answer to {state.incumbent.kernel_id}"
    assert state.requests == state.fruitless == 30
    (run,) = store.runs()
    again = Search.resume(store, run.name, parts=make_parts())
    assert again.run(Budget(measurements=5)).state.measured == 5


def test_a_run_on_another_device_is_not_resumed(store: Store) -> None:
    start(store, name="x").run(Budget(measurements=2))
    other = SyntheticBackend(FAKE_DEVICE.model_copy(update={"name": "another"}))
    with pytest.raises(SetupError, match="times do not compare"):
        Search.resume(store, "x", parts=make_parts(farm=LocalFarm(other)))


def test_budget_of_device_seconds_is_never_passed(store: Store) -> None:
    result = start(store).run(Budget(device_s=1.2))
    assert result.state.spent[Resource.DEVICE_S] <= 1.2
    assert result.state.ended is not None
    assert "device_s" in result.state.ended


def test_an_interrupt_does_not_wait_for_a_model_that_is_thinking(
    store: Store, request: pytest.FixtureRequest
) -> None:
    """Ctrl-C while an answer is awaited ends the run at once and charges what was promised."""
    # What a shell starts in the background ignores Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    forever = threading.Event()
    thought: list[bool] = []

    @dataclass(frozen=True)
    class Pondering(TemplateProposer):
        concurrency: int = 1

        def quote(self, request: ProposalRequest) -> Spend:
            return {Resource.PROPOSAL_TOKENS: 500.0, Resource.PROPOSAL_USD: 0.5}

        def propose(self, request: ProposalRequest) -> Proposals:
            _thread.interrupt_main()
            thought.append(forever.wait(300))
            return Proposals(kernels=())

    state = start(store, make_parts(proposer=Pondering())).run(Budget(candidates=5)).state
    assert thought == []
    assert state.ended == "interrupted"
    assert state.spent[Resource.PROPOSAL_TOKENS] == 500
    forever.set()


def test_all_slots_are_kept_busy(store: Store) -> None:
    class Patient(SyntheticBackend):
        """Waits until as many kernels as there are slots are measured at once."""

        together = threading.Barrier(3)

        def measure(
            self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
        ) -> Measurement:
            if kernel.parameters and effort == "screening":
                self.together.wait(300)
            return super().measure(problem, kernel, seed)

    parts = make_parts(MeasureAll(pool_size=3), farm=LocalFarm(Patient(), slots=3))
    assert start(store, parts).run(Budget(measurements=12)).state.measured == 12


def test_calibration_is_judged_on_the_forecast_that_was_decided_upon(store: Store) -> None:
    start(store, name="x").run(Budget(measurements=15))
    log = store.open_run("x")
    measured = [e for e in log.events("measured") if isinstance(e, Measured)]
    audits = {
        e.kernel_id
        for e in log.events("decided")
        if isinstance(e, Decided) and e.decision.action == "audit"
    }
    for event in measured:
        if event.purpose == "search":
            assert event.calibration is not None
            assert event.calibration.blind == (event.measurement.kernel_id in audits)
            assert event.calibration.ok == (event.measurement.failure is None)
    assert log.state.calibration.count == 15


def test_from_toml_builds_the_parts_it_names(tmp_path: Path) -> None:
    path = tmp_path / "search.toml"
    path.write_text(
        f'problem = "softmax"\nseed = 3\nstore = "{tmp_path / "s.db"}"\n'
        '[policy]\nname = "top_k"\nk = 2\n[forecaster]\nname = "roofline"\n'
    )
    search = Search.from_toml(path)
    assert search.parts.policy == TopK(k=2)
    assert search.parts.forecaster.name == "roofline"
    assert search.spec.seed == 3
    search.parts.farm.close()
    path.write_text('problem = "softmax"\npolicies = 3\n')
    with pytest.raises(SetupError, match=r"unknown keys \['policies'\]"):
        Search.from_toml(path)
    path.write_text("seed = 3\n")
    with pytest.raises(SetupError, match="name a problem"):
        Search.from_toml(path)


@pytest.mark.parametrize("module", ["search", "measuring", "thinking", "journal"])
def test_the_loop_names_no_concrete_part(module: str) -> None:
    """Neither by an import, nor by the class or the name under which a part is registered."""
    tree = ast.parse(Path(str(kernelcast.__file__)).with_name(f"{module}.py").read_text())
    parts = entry_points(group=plugins.GROUP)
    modules = {part.module for part in parts}
    classes = {part.attr for part in parts}
    names = {part.name.partition(".")[2] for part in parts}
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=imported_from):
                assert imported_from not in modules
            case ast.Import(names=imported):
                assert not modules & {alias.name for alias in imported}
            case ast.Name(id=word):
                assert word not in classes
            case ast.Constant(value=word):
                assert word not in names
