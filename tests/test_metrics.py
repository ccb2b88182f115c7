"""Metrics as Prometheus reads them, from a real endpoint."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kernelcast.errors import SetupError
from kernelcast.events import Event, Measured
from kernelcast.metrics import cluster_families, search_families, serving
from kernelcast.policies import MeasureAll
from kernelcast.store import Store
from kernelcast.types import Budget, Job, Loss, Resource
from tests.test_measuring import LosingFarm
from tests.test_search import make_parts, start

Samples = dict[tuple[str, ...], float]


def scrape(url: str) -> Samples:
    """Return values by the name of the metric and its labels' values, in order of their names."""
    with urlopen(url) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def loses(job: Job) -> Loss | None:
    poisonous = job.purpose == "search" and int(job.kernel.id, 16) % 3 == 0
    return Loss(reason="its worker died", suspect=True) if poisonous else None


class Scraping:
    """Callback that scrapes an endpoint after each measurement."""

    url = ""

    def __init__(self) -> None:
        self.scrapes: list[Samples] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, Measured):
            self.scrapes.append(scrape(self.url))


def test_a_search_is_watched_while_it_runs(tmp_path: Path) -> None:
    parts = make_parts(MeasureAll(pool_size=4), farm=LosingFarm(loses))
    watching = Scraping()
    with Store.open(tmp_path / "store.db") as store:
        search = start(store, parts, name="x", callbacks=[watching])
        families = serving(lambda: search_families("x", search.state), "127.0.0.1", 0)
        with families as watching.url:
            state = search.run(Budget(candidates=15)).state
            last = scrape(watching.url)
    counts = [sample["kernelcast_measurements_total", "x"] for sample in watching.scrapes]
    assert counts == sorted(counts)
    assert last["kernelcast_measurements_total", "x"] == state.measured
    assert last["kernelcast_quarantined_total", "x"] == state.quarantined > 0
    assert last["kernelcast_lost_total", "x"] == 2 * state.quarantined
    assert last["kernelcast_failures_total", "crash", "x"] == state.failures["crash"] > 0
    assert last["kernelcast_spent_total", "device_s", "x"] == state.spent[Resource.DEVICE_S]
    assert last["kernelcast_speedup", "x"] == pytest.approx(2.0**state.incumbent.log2_speedup)
    assert last["kernelcast_forecast_crps_log2", "x"] == state.calibration.crps
    assert last["kernelcast_forecast_coverage_80", "x"] == state.calibration.coverage_80
    assert last["kernelcast_jobs_in_flight", "x"] == 0
    assert ("kernelcast_forecast_crps_log2", "x") not in watching.scrapes[0]
    with pytest.raises(OSError, match="refused"):
        scrape(watching.url)


def test_an_address_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(SetupError, match=rf"served at 127.0.0.1:{port} .*another address"),
            serving(lambda: (), "127.0.0.1", port),
        ):
            pass


def test_a_cluster_has_slots_by_state_and_shares_by_search() -> None:
    slot = {"device": "h100", "state": "ready", "session": None}
    slots = [slot, slot | {"session": 7}, slot | {"state": "quarantined"}, slot | {"device": "cpu"}]
    search = {"session": 7, "run": "x", "wanted": 4, "share": 2, "held": 1}
    nodes = [{"state": "ready"}, {"state": "drained"}]
    facts = {"slots": slots, "searches": [search], "nodes": nodes}
    with serving(lambda: cluster_families(facts), "127.0.0.1", 0) as url:
        samples = scrape(url)
    assert samples["kernelcast_slots", "h100", "ready"] == 2
    assert samples["kernelcast_slots", "h100", "quarantined"] == 1
    assert samples["kernelcast_utilisation", "h100"] == pytest.approx(1 / 3)
    assert samples["kernelcast_utilisation", "cpu"] == 0
    assert samples["kernelcast_nodes", "drained"] == 1
    assert samples[("kernelcast_searches",)] == 1
    assert samples["kernelcast_search_slots_share", "x", "7"] == 2
