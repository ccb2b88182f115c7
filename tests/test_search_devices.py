"""A search that measures on several types of device."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest

from kernelcast.events import Measured
from kernelcast.farm.local import LocalFarm
from kernelcast.policies import MeasureAll
from kernelcast.report.console import summary
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.testing import FAKE_DEVICE, SyntheticBackend
from kernelcast.types import Budget, Effort, Job, Kernel, Loss, Measurement, Problem, Resource
from tests.test_search import make_parts, start

OTHER = FAKE_DEVICE.model_copy(update={"name": "another device"})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store.db")


class Elsewhere(SyntheticBackend):
    """A device on which the order of the kernels is the reverse."""

    def __init__(self) -> None:
        super().__init__(OTHER)

    def measure(
        self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
    ) -> Measurement:
        measurement = super().measure(problem, kernel, seed, effort)
        if measurement.timing is None:
            return measurement
        slower = {"log2_speedup": 4.0 - measurement.timing.log2_speedup}
        timing = measurement.timing.model_copy(update=slower)
        return measurement.model_copy(update={"timing": timing})


class Several(LocalFarm):
    """Measures on two devices."""

    def __init__(self) -> None:
        super().__init__(SyntheticBackend())
        self.other = LocalFarm(Elsewhere())
        self.jobs: list[Job] = []

    @property
    def others(self) -> tuple[LocalFarm, ...]:
        return (self.other,)

    def submit(self, problem: Problem, job: Job) -> Future[Measurement | Loss]:
        self.jobs.append(job)
        return super().submit(problem, job)

    def close(self) -> None:
        super().close()
        self.other.close()


def test_each_device_has_its_own_best(store: Store) -> None:
    farm = Several()
    result = start(store, make_parts(MeasureAll(), farm=farm), name="x").run(
        Budget(measurements=60)
    )
    state = result.state
    other = state.elsewhere[OTHER.id]
    assert {job.device for job in farm.jobs} == {FAKE_DEVICE.id}
    assert other.reference is not None
    assert other.measured > 5
    assert state.measured + other.measured == 60 == state.spent[Resource.MEASUREMENTS]
    assert other.best not in (None, result.kernel.id)
    assert (
        result.kernel.id
        == max(
            (node for node in state.archive.values() if node.confirmed),
            key=lambda n: n.log2_speedup,
        ).kernel_id
    )
    log = store.open_run("x")
    events = [e for e in log.events("measured") if isinstance(e, Measured)]
    there = [e for e in events if e.measurement.device_id == OTHER.id]
    confirmed = [e.measurement.log2_speedup or 0.0 for e in there if e.purpose == "confirmation"]
    assert other.best_log2 == max(confirmed)
    assert summary(state)["best_elsewhere"][OTHER.id]["kernel_id"] == other.best
    assert log.replay() == state


def test_a_search_on_several_devices_is_resumed(store: Store) -> None:
    start(store, make_parts(MeasureAll(), farm=Several()), name="x").run(Budget(measurements=10))
    search = Search.resume(store, "x", parts=make_parts(MeasureAll(), farm=Several()))
    state = search.run(Budget(measurements=30)).state
    assert state.measured + state.elsewhere[OTHER.id].measured == 30
