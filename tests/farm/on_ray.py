"""Tests of `RayFarm` on a real cluster of two nodes; `test_ray.py` runs them in own namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import ray

from kernelcast.errors import SetupError
from kernelcast.events import Leased
from kernelcast.farm import _registry
from kernelcast.farm._slot import _alive
from kernelcast.farm.ray import RayFarm
from kernelcast.protocols import Backend
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.testing import FarmContract, SyntheticBackend, synthetic_kernels, synthetic_problem
from kernelcast.types import Job, Loss, Measurement
from tests.farm.marking import LIMIT_S, MarkingBackend, await_true
from tests.own_network import HOST
from tests.test_search import make_parts

PORT = 6379
ROOT = Path(__file__).parents[2]
LEASE_S = 600.0


def start_node(folder: Path, name: str, *, head: bool = False) -> None:
    """Start a raylet that has one slot."""
    role = ["--head", f"--port={PORT}", f"--temp-dir={folder}", "--include-dashboard=false"]
    role = role if head else [f"--address={HOST}:{PORT}"]
    slot = ['--resources={"kernelcast_slot": 1}', "--labels=kernelcast-device=fake"]
    size = ["--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats"]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    subprocess.run(
        ["ray", "start", *role, *slot, *size, f"--node-ip-address={HOST}", f"--node-name={name}"],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": path, "MY_API_KEY": "secret"},
    )


@pytest.fixture(scope="session", autouse=True)
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Start two nodes; they end with the namespace of processes."""
    folder = tmp_path_factory.mktemp("ray")
    start_node(folder, "one", head=True)
    start_node(folder, "two")


def make_farm(backend: Any, slots: int = 0, **options: Any) -> RayFarm:
    return RayFarm(backend, slots, address=f"{HOST}:{PORT}", **options)


class TestRayFarm(FarmContract):
    def make(self, backend: Backend, slots: int) -> Any:
        return make_farm(backend, slots)


def submit(farm: RayFarm, *seeds: int, avoid: str = "") -> list[Future[Measurement | Loss]]:
    run = str(farm._session)
    jobs = [
        Job(
            entry=f"search-{seed}", purpose="search", kernel=kernel, seed=seed, run=run, avoid=avoid
        )
        for seed, kernel in zip(seeds, synthetic_kernels(len(seeds)), strict=True)
    ]
    return [farm.submit(synthetic_problem(), job) for job in jobs]


def measured(future: Future[Measurement | Loss]) -> Measurement:
    result = future.result(LIMIT_S)
    assert isinstance(result, Measurement)
    return result


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[MarkingBackend]:
    backend = MarkingBackend(tmp_path)
    yield backend
    assert not (tmp_path / "shared").exists()


def test_a_job_whose_worker_dies_is_a_loss_and_the_next_one_is_measured(
    backend: MarkingBackend,
) -> None:
    with closing(make_farm(backend, 1)) as farm:
        first, second = submit(farm, 1, 2)
        worker, _ = backend.pids(1)
        os.kill(worker, signal.SIGKILL)
        loss = first.result(LIMIT_S)
        assert loss == Loss(reason="its worker died", suspect=True)
        backend.open()
        measured(second)
    assert backend.times_begun() == [1, 2]
    assert farm.stale == 0


class LateClock:
    """The driver's clock, which a test sets forward: no job can outlast its lease by slowness."""

    sleep = staticmethod(time.sleep)

    def __init__(self) -> None:
        self.forward_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.forward_s


def test_a_worker_that_stops_is_killed_when_the_lease_runs_out(
    backend: MarkingBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LateClock()
    monkeypatch.setattr("kernelcast.farm.ray.time", clock)
    backend.open(2)
    with closing(make_farm(backend, 1, lease_s=LEASE_S)) as farm:
        first, second = submit(farm, 1, 2)
        pids = backend.pids(1)
        os.kill(pids[0], signal.SIGSTOP)
        clock.forward_s = LEASE_S + 1.0
        loss = first.result(LIMIT_S)
        assert not any(map(_alive, pids))
        assert loss == Loss(reason="its lease ran out", suspect=True)
        measured(second)


def test_a_job_is_measured_by_another_node_than_the_one_it_checks(
    backend: MarkingBackend,
) -> None:
    with closing(make_farm(backend)) as farm:
        first = submit(farm, 0, 1)
        backend.pids(0)
        backend.pids(1)
        later = submit(farm, *range(2, 8), avoid="one")
        backend.open()
        nodes = [measured(future).node for future in (*first, *later)]
    assert sorted(nodes[:2]) == ["one", "two"]
    assert set(nodes[2:]) == {"two"}


def test_cancelling_reaches_the_child_of_a_running_job(backend: MarkingBackend) -> None:
    with closing(make_farm(backend, 1)) as farm:
        first, second, third = submit(farm, 1, 2, 3)
        pids = backend.pids(1)
        farm.cancel("search-2")
        assert isinstance(second.result(LIMIT_S), Loss)
        farm.cancel("search-1")
        assert first.result(LIMIT_S) == Loss(reason="it was cancelled")
        assert not any(map(_alive, pids))
        backend.open()
        measured(third)
    assert backend.times_begun() == [1, 3]


def test_closing_ends_what_is_under_way(backend: MarkingBackend) -> None:
    farm = make_farm(backend, 1)
    first, second = submit(farm, 1, 2)
    pids = backend.pids(1)
    farm.close()
    assert first.result() == Loss(reason="it was cancelled")
    assert second.cancelled()
    assert not any(map(_alive, pids))


DRIVER = """
import sys
from pathlib import Path
from kernelcast.store import Store
from kernelcast.types import Budget
from tests.farm.marking import MarkingBackend
from tests.farm.on_ray import make_farm
from tests.test_search import make_parts, start

folder = Path(sys.argv[1])
farm = make_farm(MarkingBackend(folder), 1)
start(Store.open(folder / "store.db"), make_parts(farm=farm), name="x").run(Budget(measurements=4))
"""


def test_a_job_outlives_its_driver_and_is_taken_over(backend: MarkingBackend) -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(backend.folder)], cwd=ROOT)
    await_true(lambda: bool(backend.times_begun()))
    (seed,) = backend.times_begun()
    driver.kill()
    driver.wait()
    store = Store.open(backend.folder / "store.db")
    search = Search.resume(store, "x", parts=make_parts(farm=make_farm(backend, 1)))
    backend.open()
    state = search.run().state
    assert (state.measured, state.lost) == (4, 0)
    seeds = backend.times_begun()
    assert len(seeds) == len(set(seeds))
    assert seeds[0] == seed
    leases = [e for e in store.open_run("x").events("leased") if isinstance(e, Leased)]
    assert [e.lease for e in leases if e.purpose == "reference"] == [1, 2]
    assert not list(store.open_run("x").events("voided"))


def test_two_searches_share_the_slots(tmp_path: Path) -> None:
    backends = [MarkingBackend(tmp_path / name) for name in "ab"]
    for backend in backends:
        backend.folder.mkdir()
    first, second = backends
    with closing(make_farm(first)) as one, closing(make_farm(second)) as other:
        ones = submit(one, *range(40))
        await_true(lambda: len(first.times_begun()) == 2)
        others = submit(other, *range(40))
        await_true(lambda: one.slots == other.slots == 1)
        for seed in range(5):
            first.open(seed)
        second.pids(0)
        assert not ones[-1].done()
        second.open()
        first.open()
        for future in (*ones, *others):
            measured(future)
    both = [backend.times_begun() for backend in backends]
    assert [sorted(seeds) for seeds in both] == [list(range(40))] * 2


def test_workers_hold_no_model_key(backend: MarkingBackend) -> None:
    with closing(make_farm(backend, 1)) as farm:
        assert farm.toolchain == "key unset"


def test_a_device_that_the_cluster_does_not_have_is_named() -> None:
    with pytest.raises(SetupError, match=r"no slots of device 'h100' \(it has: fake\)"):
        make_farm(SyntheticBackend(), device="h100")


def test_a_slot_that_drifts_is_quarantined_until_its_noise_is_as_before(
    backend: MarkingBackend,
) -> None:
    registry: Any = ray.get_actor(_registry.NAME, namespace="kernelcast")
    backend.open()
    nodes_of: Any = ray.nodes
    (two,) = (node["NodeID"] for node in nodes_of() if node["NodeName"] == "two")
    noise = backend.folder / f"{two}.noise"

    def states() -> dict[str, str]:
        return {slot["node"]: slot["state"] for slot in ray.get(registry.status.remote())}

    with closing(make_farm(backend)) as farm:
        nodes: list[str] = []
        while len(set(nodes)) < 2:
            nodes += [measured(future).node for future in submit(farm, len(nodes), len(nodes) + 1)]
        expected = {f"search-{seed}" for seed, node in enumerate(nodes) if node == "two"}
        noise.write_text("0.5")
        while "quarantined" not in states().values():
            seeds = range(len(nodes), len(nodes) + 2)
            nodes += [measured(future).node for future in submit(farm, *seeds)]
            assert nodes[-2:] == ["one", "one"]
        assert states()["two"] == "quarantined"
        doubted: dict[str, str] = {}
        await_true(lambda: bool(doubted.update(farm.doubted()) or expected <= set(doubted)))
        assert set(doubted) == expected
        assert "its noise is 41.4%" in doubted.popitem()[1]
        noise.unlink()
        await_true(lambda: states()["two"] in ("checked", "ready"))


def test_a_node_that_others_contradict_is_given_no_job(backend: MarkingBackend) -> None:
    backend.open()
    registry: Any = ray.get_actor(_registry.NAME, namespace="kernelcast")
    for other, agree in (("three", True), ("three", False), ("four", False), ("four", False)):
        ray.get(registry.compare.remote("two", other, agree=agree))
    (slot,) = (s for s in ray.get(registry.status.remote()) if s["node"] == "two")
    assert (slot["state"], slot["reason"]) == (
        "quarantined",
        "it disagrees with the nodes four, three",
    )
    with closing(make_farm(backend)) as farm:
        assert {measured(future).node for future in submit(farm, *range(4))} == {"one"}


def test_a_drained_node_is_given_no_job(backend: MarkingBackend) -> None:
    backend.open()
    registry: Any = ray.get_actor(_registry.NAME, namespace="kernelcast")
    ray.get(registry.drain.remote("two"))
    with closing(make_farm(backend)) as farm:
        await_true(lambda: farm.slots == 1)
        for future in submit(farm, *range(8)):
            measured(future)
        await_true(lambda: [s["node"] for s in ray.get(registry.status.remote())] == ["one"])
    assert len(list(backend.folder.glob("*.owner"))) == 1
