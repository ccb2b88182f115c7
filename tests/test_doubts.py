"""What another node checks, and what is measured again because its slot is not believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelcast.doubts import retractions
from kernelcast.events import Measured, Retracted
from kernelcast.farm.local import LocalFarm
from kernelcast.policies import MeasureAll
from kernelcast.report.console import summary
from kernelcast.store import Store
from kernelcast.testing import SyntheticBackend
from kernelcast.types import Budget, Job, Loss, Measurement, Problem, Resource
from tests.test_search import make_parts, start


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store.db")


class Nodes(LocalFarm):
    """Two nodes take turns; the first doubts `doubted` of its results after `after` jobs."""

    def __init__(self, doubted: int = 0, after: int = 0) -> None:
        super().__init__(SyntheticBackend())
        self.jobs: list[Job] = []
        self.to_doubt = doubted
        self.after = after
        self.compared: list[tuple[Measurement, Measurement]] = []

    def _measure(self, problem: Problem, job: Job) -> Measurement | Loss:
        self.jobs.append(job)
        node = next(name for name in ("one", "two") if name != job.avoid)
        if not job.avoid and len(self.jobs) % 2:
            node = "two"
        result = super()._measure(problem, job)
        assert isinstance(result, Measurement)
        return result.model_copy(update={"slot": f"{node}/0"})

    def doubted(self) -> dict[str, str]:
        if not self.to_doubt or len(self.jobs) < self.after:
            return {}
        entries = [job.entry for job in self.jobs[: self.to_doubt]]
        self.to_doubt = 0
        return dict.fromkeys(entries, "it drifts")

    def compare(self, first: Measurement, second: Measurement) -> None:
        self.compared.append((first, second))


def test_what_a_slot_that_drifts_has_measured_is_measured_again(store: Store) -> None:
    farm = Nodes(doubted=6, after=12)
    result = start(store, make_parts(MeasureAll(), farm=farm), name="x").run(
        Budget(measurements=30)
    )
    log = store.open_run("x")
    retracted = [event for event in log.events("retracted") if isinstance(event, Retracted)]
    assert {event.entry for event in retracted} <= {job.entry for job in farm.jobs[:6]}
    assert len(retracted) == result.state.retracted > 1
    assert {event.reason for event in retracted} == {"it drifts"}
    measured = [e.measurement.kernel_id for e in log.events("measured") if isinstance(e, Measured)]
    for event in retracted:
        assert measured.count(event.kernel_id) >= 2
        assert event.kernel_id not in result.state.pending
    again = {event.kernel_id for event in retracted} & set(measured[12:])
    assert len(again) > 1
    assert result.confirmed
    assert result.state.spent[Resource.MEASUREMENTS] == 30
    assert summary(result.state)["retracted"] == len(retracted)
    assert log.replay() == result.state


def test_a_retracted_measurement_leaves_the_cache(store: Store) -> None:
    farm = Nodes(doubted=3, after=3)
    search = start(store, make_parts(MeasureAll(), farm=farm), name="x")
    search.begin(Budget(measurements=9))
    for _ in range(3):
        job = search.ask()
        assert job is not None
        outcome = farm.submit(search.problem, job).result()
        search.tell(job, outcome)
    keys = [
        search._measuring._cache_key(job.kernel.id) for job in farm.jobs if job.purpose == "search"
    ]
    assert any(store.cached_measurement(key) for key in keys)
    search.log.append(retractions(search.log, farm.doubted()))
    assert not any(store.cached_measurement(key) for key in keys)


def test_a_new_best_is_confirmed_by_another_node(store: Store) -> None:
    farm = Nodes()
    state = start(store, make_parts(farm=farm), name="x").run(Budget(measurements=20)).state
    confirmations = [job for job in farm.jobs if job.purpose == "confirmation"]
    assert state.confirmations == len(confirmations) == len(farm.compared) > 0
    assert all(job.avoid in ("one", "two") for job in confirmations)
    assert all({first.node, second.node} == {"one", "two"} for first, second in farm.compared)


def test_a_share_of_all_measurements_is_made_again_by_another_node(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelcast.doubts._REPEATED", 1.0)
    farm = Nodes()
    state = start(store, make_parts(MeasureAll(), farm=farm)).run(Budget(measurements=40)).state
    # Failed kernels are repeated too: a broken node fails them all.
    failures = [first for first, _ in farm.compared if first.failure is not None]
    assert failures
    assert 30 <= len(farm.compared) <= state.measured
    assert state.measured == 40 == state.spent[Resource.MEASUREMENTS]
