"""Metrics of a search and of a cluster for Prometheus.

Nothing is counted here: each scrape reads what the run's state and the cluster's registry hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kernelcast.errors import SetupError, import_extra
from kernelcast.state import State

Families = Iterable[Any]
Values = Mapping[Any, float]
"""Values by their labels, which are tuples of text."""


@contextmanager
def serving(families: Callable[[], Families], host: str, port: int) -> Iterator[str]:
    """Serve metrics while the context is open, and return their URL.

    Args:
        families: Returns the present metrics, on a thread of the server.
        host: Address to listen on.
        port: Port to listen on; 0 is any free one.

    Raises:
        SetupError: The address cannot be used.
    """
    client = import_extra("prometheus_client", "metrics")
    registry = client.CollectorRegistry()
    registry.register(_Collector(families))
    try:
        server, thread = client.start_http_server(port, host, registry)
    except OSError as error:
        raise SetupError(
            f"metrics cannot be served at {host}:{port} ({error}): name another address"
        ) from error
    try:
        yield f"http://{host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Collector:
    def __init__(self, families: Callable[[], Families]) -> None:
        self._families = families

    def describe(self) -> Families:
        """Return no metrics: before the first scrape there may be none."""
        return ()

    def collect(self) -> Families:
        return self._families()


def search_families(run: str, state: State) -> Families:
    """Yield the metrics of a search."""
    best = state.best_measurement.log2_speedup if state.best_measurement else None
    calibration = state.calibration
    numbers: dict[str, tuple[str, float | None]] = {
        "pending": ("Candidates that wait for a measurement or are measured.", len(state.pending)),
        "open": ("Candidates that wait for a decision.", len(state.open)),
        "jobs_in_flight": ("Attempts to measure that are under way.", len(state.leases)),
        "speedup": ("Best speedup against the seed kernel.", 2.0 ** (best or 0.0)),
        "forecast_coverage_80": (
            "Share of outcomes inside the forecasts' central 80% interval.",
            calibration.coverage_80,
        ),
        "forecast_crps_log2": ("Mean CRPS of the forecasts, log2 units.", calibration.crps),
    }
    for name, (text, value) in numbers.items():
        if value is not None:
            yield _gauge(f"kernelcast_{name}", text, {(run,): value}, ("run",))
    counts = {
        "measurements": ("Measurements made.", state.measured - state.cached),
        "measurements_reused": ("Measurements known from other runs.", state.cached),
        "confirmations": ("Second measurements of a new best.", state.confirmations),
        "candidates": ("Candidates considered.", state.considered),
        "lost": ("Attempts to measure that were lost.", state.lost),
        "retracted": ("Results of slots that are not believed any more.", state.retracted),
        "quarantined": ("Kernels that ended several workers.", state.quarantined),
    }
    for name, (text, count) in counts.items():
        yield _counter(f"kernelcast_{name}", text, {(run,): count}, ("run",))
    failures = {(run, str(kind)): count for kind, count in dict(state.failures).items()}
    yield _counter("kernelcast_failures", "Kernels that failed.", failures, ("run", "kind"))
    spent = {(run, resource.value): amount for resource, amount in dict(state.spent).items()}
    text = "What was spent: dollars, tokens, measurements and device seconds."
    yield _counter("kernelcast_spent", text, spent, ("run", "resource"))


def cluster_families(facts: Mapping[str, Any]) -> Families:
    """Yield the metrics of a cluster from what `kernelcast farm status --json` prints."""
    slots = facts["slots"]
    states: dict[tuple[str, ...], float] = {}
    busy: dict[tuple[str, ...], list[bool]] = {}
    for slot in slots:
        key = (slot["device"], slot["state"])
        states[key] = states.get(key, 0) + 1
        busy.setdefault((slot["device"],), []).append(slot["session"] is not None)
    yield _gauge("kernelcast_slots", "Slots by state.", states, ("device", "state"))
    shares = {device: sum(used) / len(used) for device, used in busy.items()}
    yield _gauge(
        "kernelcast_utilisation", "Share of slots that searches hold.", shares, ("device",)
    )
    nodes: dict[tuple[str, ...], float] = {}
    for node in facts["nodes"]:
        nodes[(node["state"],)] = nodes.get((node["state"],), 0) + 1
    yield _gauge("kernelcast_nodes", "Nodes by state.", nodes, ("state",))
    searches = facts["searches"]
    count = {(): float(len(searches))}
    yield _gauge("kernelcast_searches", "Searches that use the cluster.", count, ())
    for name, text in {
        "wanted": "Slots that a search could use now.",
        "share": "Slots that a search may count on.",
        "held": "Slots that a search holds.",
    }.items():
        values = {(str(row["session"]), row["run"]): float(row[name]) for row in searches}
        yield _gauge(f"kernelcast_search_slots_{name}", text, values, ("session", "run"))


def _gauge(name: str, text: str, values: Values, labels: Sequence[str]) -> Any:
    core = import_extra("prometheus_client.core", "metrics")
    return _filled(core.GaugeMetricFamily(name, text, labels=labels), values)


def _counter(name: str, text: str, values: Values, labels: Sequence[str]) -> Any:
    core = import_extra("prometheus_client.core", "metrics")
    return _filled(core.CounterMetricFamily(name, text, labels=labels), values)


def _filled(family: Any, values: Values) -> Any:
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family
