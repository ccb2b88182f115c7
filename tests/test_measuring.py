"""Attempts of a search: their leases, their losses, and the jobs that outlive their driver."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
import sqlalchemy as sa

from kernelcast import measuring, tables
from kernelcast.errors import SetupError, StaleLease, StoreError
from kernelcast.events import Leased, Lost, Quarantined, Settled
from kernelcast.farm.local import LocalFarm
from kernelcast.policies import MeasureAll
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.testing import SyntheticBackend, synthetic_problem
from kernelcast.types import Budget, Job, Loss, Measurement, Problem, Resource
from tests.test_search import make_parts, start

Outcome = Measurement | Loss


class LosingFarm(LocalFarm):
    """Loses the attempts that a function names, after they were measured."""

    def __init__(self, loses: Callable[[Job], Loss | None], slots: int = 1) -> None:
        super().__init__(SyntheticBackend(), slots)
        self.loses = loses
        self.jobs: list[Job] = []

    def submit(self, problem: Problem, job: Job) -> Future[Outcome]:
        self.jobs.append(job)
        loss = self.loses(job)
        if loss is None:
            return super().submit(problem, job)
        future: Future[Outcome] = Future()
        future.set_result(loss)
        return future


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store.db")


def test_a_lost_attempt_is_charged_as_unknown_and_made_again(store: Store) -> None:
    farm = LosingFarm(lambda job: Loss(reason="node lost") if job.attempt == 1 else None)
    state = start(store, make_parts(farm=farm), name="x").run(Budget(measurements=6)).state
    assert state.measured == 6 == state.spent[Resource.MEASUREMENTS]
    assert state.quarantined == 0
    assert (state.entries, state.leases, state.losses) == ({}, {}, {})
    attempts = Counter(job.attempt for job in farm.jobs)
    assert attempts[1] == attempts[2] == state.lost
    log = store.open_run("x")
    quote = farm.quote(synthetic_problem())[Resource.DEVICE_S]
    unknown = [e.spend for e in log.events("settled") if isinstance(e, Settled) and e.unknown]
    assert unknown == [{Resource.DEVICE_S: quote}] * state.lost
    assert {e.reason for e in log.events("lost") if isinstance(e, Lost)} == {"node lost"}


def test_a_kernel_that_ends_two_workers_is_quarantined(store: Store) -> None:
    def loses(job: Job) -> Loss | None:
        poisonous = job.purpose == "search" and int(job.kernel.id, 16) % 3 == 0
        return Loss(reason="its worker died", suspect=True) if poisonous else None

    farm = LosingFarm(loses)
    parts = make_parts(MeasureAll(pool_size=4), farm=farm)
    state = start(store, parts, name="x").run(Budget(candidates=15)).state
    quarantined = list(store.open_run("x").events("quarantined"))
    attempts = Counter(job.kernel.id for job in farm.jobs if loses(job))
    assert set(attempts.values()) == {2}
    assert {e.kernel_id for e in quarantined if isinstance(e, Quarantined)} == set(attempts)
    assert state.quarantined == state.failures["crash"] == len(attempts) > 0
    again = start(store, make_parts(MeasureAll(pool_size=4), farm=LosingFarm(loses)), name="y")
    assert again.run(Budget(candidates=15)).state.quarantined == 0, "other runs do not run it"


def test_a_job_that_waits_long_for_its_slot_keeps_its_claim(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more searches than slots, a slot may come after the claim would have run out."""

    class LateFarm(LocalFarm):
        def submit(self, problem: Problem, job: Job) -> Future[Outcome]:
            if job.purpose != "search":
                return super().submit(problem, job)
            future: Future[Outcome] = Future()
            threading.Thread(target=self._wait, args=(problem, job, future), daemon=True).start()
            return future

        def _wait(self, problem: Problem, job: Job, future: Future[Outcome]) -> None:
            with Store.open(location) as other:
                claim = sa.select(tables.claims.c.expires_at)
                first_s = last_s = None
                while first_s is None or last_s == first_s:
                    with other.connect() as connection:
                        last_s = connection.scalar(claim)
                    first_s = last_s if first_s is None else first_s
            future.set_result(super().submit(problem, job).result())

    monkeypatch.setattr(measuring, "_RENEWAL_S", 0.01)
    with Store.open(location) as store:
        parts = make_parts(farm=LateFarm(SyntheticBackend()))
        assert start(store, parts).run(Budget(measurements=2)).state.measured == 2


def test_a_seed_kernel_that_ends_its_workers_is_a_broken_set_up(store: Store) -> None:
    farm = LosingFarm(lambda _: Loss(reason="its worker died", suspect=True))
    with pytest.raises(SetupError, match=r"seed kernel .*it ended 2 workers"):
        start(store, make_parts(farm=farm)).run(Budget(measurements=5))


def test_a_late_result_is_refused(store: Store) -> None:
    search = start(store, make_parts(), name="x")
    search.begin(Budget(measurements=3))
    job = search.ask()
    assert job is not None
    measurement = SyntheticBackend().measure(search.problem, job.kernel, job.seed, job.effort)
    search.tell(job, Loss(reason="the lease ran out"))
    before = search.state.events
    with pytest.raises(StaleLease):
        search.tell(job, measurement)
    assert search.state.events == before
    second = search.ask()
    assert second is not None
    assert (second.kernel, second.attempt) == (job.kernel, 2)
    search.tell(second, measurement)
    with pytest.raises(StaleLease):
        search.tell(second, measurement)
    assert search.state == store.open_run("x").replay()


def test_the_store_itself_refuses_a_result_under_an_old_lease(location: str) -> None:
    """A process that does not know of the new lease cannot settle, whatever its own state says."""
    with Store.open(location) as store:
        search = start(store, make_parts(), name="x")
        search.begin(Budget(measurements=3))
        job = search.ask()
        assert job is not None
        run, other = store.open_run("x"), store.open_run("x")
        leased = run.state.leases[job.entry]
        run.append([leased.model_copy(update={"lease": 2})])
        # It knows the later events, but not what they say.
        other.state.events, other._crc = run.state.events, run._crc
        with pytest.raises(StaleLease):
            other.append([Settled(entry=job.entry, spend={}, lease=1)])
        assert store.open_run("x").state == run.state


def test_jobs_that_outlive_their_driver_are_taken_over(store: Store) -> None:
    class OutlivingFarm(LocalFarm):
        """Keeps the results of submitted jobs for the next driver."""

        kept: dict[str, Future[Outcome]] = {}  # noqa: RUF012
        cancelled: list[str] = []  # noqa: RUF012
        adopted: list[str] = []  # noqa: RUF012

        def adopt(self, run: str) -> dict[str, Future[Outcome]]:
            self.adopted.append(run)
            return dict(self.kept)

        def cancel(self, entry: str) -> None:
            self.cancelled.append(entry)

    search = start(store, make_parts(), name="x")
    search.begin(Budget(measurements=4))
    job = search.ask()
    assert job is not None
    measurement = SyntheticBackend().measure(search.problem, job.kernel, job.seed, job.effort)
    search.log.release()
    for entry in (job.entry, "of an entry that is closed"):
        OutlivingFarm.kept[entry] = Future()
        OutlivingFarm.kept[entry].set_result(measurement)
    farm = OutlivingFarm(SyntheticBackend())
    state = Search.resume(store, "x", parts=make_parts(farm=farm)).run().state
    assert state.reference == measurement
    assert state.measured == 4
    assert farm.cancelled == ["of an entry that is closed"]
    assert farm.adopted == [job.run]
    leases = [e for e in store.open_run("x").events("leased") if isinstance(e, Leased)]
    assert [e.lease for e in leases if e.entry == job.entry] == [1, 2]
    assert not list(store.open_run("x").events("voided"))
    with pytest.raises(StoreError):
        search.tell(job, measurement)


def test_runs_of_one_name_in_two_stores_share_no_jobs(tmp_path: Path) -> None:
    keys = []
    for name in ("one.db", "two.db"):
        search = start(Store.open(tmp_path / name), make_parts(), name="x")
        search.begin(Budget(measurements=4))
        job = search.ask()
        assert job is not None
        keys.append(job.run)
    assert len(set(keys)) == 2
    assert Store.open(tmp_path / "two.db").open_run("x").key == keys[1]


def test_of_two_runs_one_measures_and_the_other_waits_for_it(store: Store) -> None:
    first, second = (start(store, make_parts(MeasureAll()), name=name) for name in "xy")
    first.begin(Budget(measurements=3))
    reference = first.ask()
    assert reference is not None
    first.tell(reference, measured(first, reference))
    shared = first.ask()
    assert shared is not None
    jobs: list[Job] = []

    def measure_all() -> None:
        second.begin(Budget(candidates=4))
        while (job := second.ask()) is not None:
            jobs.append(job)
            second.tell(job, measured(second, job))

    # It has other kernels to measure, but cannot end without the one that both want.
    thread = threading.Thread(target=measure_all)
    thread.start()
    while len(jobs) < 4:
        assert thread.is_alive()
    first.tell(shared, measured(first, shared))
    thread.join(300)
    assert second.state.measured == 4
    assert second.state.cached == 1
    assert shared.kernel not in [job.kernel for job in jobs if job.purpose == "search"]


def measured(search: Search, job: Job) -> Measurement:
    return SyntheticBackend().measure(search.problem, job.kernel, job.seed, job.effort)
