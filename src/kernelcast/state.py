"""The state of a run: a fold over its events, and nothing else.

`State.apply` is the only thing that changes it, so a crash and a replay meet in the same state.
Its size is bounded (archive, open candidates, work in flight and sums, never the history), so a
snapshot costs the same after a million events as after a thousand.
"""

from __future__ import annotations

from collections import Counter

from pydantic import BaseModel

from kernelcast.errors import StoreError
from kernelcast.events import (
    BudgetChanged,
    CalibrationRecord,
    Decided,
    Event,
    Forecasted,
    Inspected,
    Measured,
    Proposed,
    Reserved,
    RunEnded,
    RunStarted,
    Settled,
    Voided,
)
from kernelcast.types import Budget, Candidate, Measurement, Node, Resource

ARCHIVE_LIMIT = 1_000
_ARCHIVE_SLACK = 100  # sorting once a hundred insertions keeps eviction cheap and exact
CONFIDENCE_BUCKETS = 10


class Pending(BaseModel):
    """A candidate that will be, or is being, measured."""

    candidate: Candidate
    audit: bool


class Calibration(BaseModel):
    """Sums over forecasts that met their outcome."""

    count: int = 0
    blind: int = 0
    timed: int = 0
    inside_80: int = 0
    crps_sum: float = 0.0
    half_brier_sum: float = 0.0
    failure_brier_sum: float = 0.0
    bucket_counts: list[int] = [0] * CONFIDENCE_BUCKETS
    bucket_confidence: list[float] = [0.0] * CONFIDENCE_BUCKETS
    bucket_correct: list[int] = [0] * CONFIDENCE_BUCKETS

    def add(self, record: CalibrationRecord) -> None:
        """Count one forecast against its outcome."""
        self.count += 1
        self.blind += record.blind
        self.failure_brier_sum += (record.p_ok - record.ok) ** 2
        if record.crps is None or record.half_brier is None or record.confidence is None:
            return
        self.timed += 1
        self.inside_80 += bool(record.inside_80)
        self.crps_sum += record.crps
        self.half_brier_sum += record.half_brier
        bucket = min(int(record.confidence * CONFIDENCE_BUCKETS), CONFIDENCE_BUCKETS - 1)
        self.bucket_counts[bucket] += 1
        self.bucket_confidence[bucket] += record.confidence
        self.bucket_correct[bucket] += bool(record.bin_correct)

    @property
    def crps(self) -> float | None:
        """Mean CRPS in log2 units, lower is better; None before the first timed forecast."""
        return self.crps_sum / self.timed if self.timed else None

    @property
    def half_brier(self) -> float | None:
        """Mean halved Brier score over the default bins, lower is better."""
        return self.half_brier_sum / self.timed if self.timed else None

    @property
    def coverage_80(self) -> float | None:
        """Share of outcomes inside the central 80% interval; 0.8 is calibrated."""
        return self.inside_80 / self.timed if self.timed else None

    @property
    def expected_calibration_error(self) -> float | None:
        """Mean gap between claimed confidence and share of right bins, weighted by count."""
        if not self.timed:
            return None
        gaps = zip(self.bucket_confidence, self.bucket_correct, strict=True)
        return sum(abs(confidence - correct) for confidence, correct in gaps) / self.timed


class State(BaseModel):
    """Where a run stands. Changed only by `apply`."""

    events: int = 0
    started: RunStarted | None = None
    budget: Budget = Budget()
    ended: str | None = None

    requests: int = 0
    considered: int = 0
    duplicates: int = 0
    forecasts: int = 0
    dropped: int = 0
    trusted: int = 0
    measured: int = 0
    audited: int = 0
    cached: int = 0
    confirmations: int = 0
    failures: Counter[str] = Counter()

    expansions: int = 0
    archive: dict[str, Node] = {}
    open: dict[str, Candidate] = {}
    pending: dict[str, Pending] = {}
    unconfirmed: dict[str, float] = {}
    reference: Measurement | None = None
    best: str | None = None
    calibration: Calibration = Calibration()

    spent: dict[Resource, float] = {}
    entries: dict[str, dict[Resource, float]] = {}
    attempts: int = 0

    # ------------------------------------------------------------------------------- reading

    @property
    def incumbent(self) -> Node:
        """The fastest kernel whose speed was measured twice; the seed at first."""
        if self.started is None:
            raise StoreError("this run has no run_started event: it is empty or damaged")
        return self.archive[self.best or self.started.seed_kernel_id]

    @property
    def noise_log2(self) -> float:
        """The reference timed against itself: what difference means nothing here."""
        return self.reference.noise_log2 if self.reference else 0.0

    def reserved(self, resource: Resource) -> float:
        """What is promised and neither settled nor voided."""
        return sum(spend.get(resource, 0.0) for spend in self.entries.values())

    def left(self, resource: Resource) -> float:
        """What may still be reserved; infinite without a cap."""
        cap = self.budget.caps().get(resource)
        if cap is None:
            return float("inf")
        return cap - self.spent.get(resource, 0.0) - self.reserved(resource)

    def anchor(self, kernel_id: str) -> Node:
        """The nearest measured kernel up the lineage, the incumbent where there is none."""
        node = self.archive.get(kernel_id)
        while node is not None and node.origin == "forecast":
            node = self.archive.get(node.parent_id or "")
        return node or self.incumbent

    # ------------------------------------------------------------------------------- folding

    def apply(self, event: Event) -> None:
        """Fold one event in."""
        self.events += 1
        match event:
            case RunStarted():
                self.started = event
                self.budget = event.budget
                seed = event.seed_kernel_id
                self.archive[seed] = Node(
                    kernel_id=seed, parent_id=None, log2_speedup=0.0, origin="seed", confirmed=True
                )
            case BudgetChanged():
                self.budget = event.budget
                self.ended = None
            case Proposed():
                self._propose(event)
            case Inspected():
                candidate = self.open[event.kernel_id]
                self.open[event.kernel_id] = candidate.model_copy(
                    update={"evidence": event.evidence}
                )
            case Forecasted():
                self.forecasts += 1
                candidate = self.open[event.kernel_id]
                self.open[event.kernel_id] = candidate.model_copy(
                    update={"forecast": event.forecast}
                )
            case Decided():
                self._decide(event)
            case Reserved():
                self.attempts += 1
                self.entries[event.entry] = dict(event.spend)
            case Settled():
                del self.entries[event.entry]
                for resource, amount in event.spend.items():
                    self.spent[resource] = self.spent.get(resource, 0.0) + amount
            case Voided():
                del self.entries[event.entry]
            case Measured():
                self._measure(event)
            case RunEnded():
                self.ended = event.reason

    def _propose(self, event: Proposed) -> None:
        self.requests = max(self.requests, event.request + 1)
        self.expansions += 1
        parent = self.archive.get(event.parent_id)
        if parent is not None:
            self.archive[parent.kernel_id] = parent.model_copy(update={"visits": parent.visits + 1})
        if event.duplicate:
            self.duplicates += 1
            return
        self.open[event.kernel_id] = Candidate(
            kernel_id=event.kernel_id, parent_id=event.parent_id, ordinal=self.considered
        )
        self.considered += 1

    def _decide(self, event: Decided) -> None:
        candidate = self.open.pop(event.kernel_id)
        match event.decision.action:
            case "drop":
                self.dropped += 1
            case "trust":
                self.trusted += 1
                if event.log2_speedup is not None:
                    self._archive(candidate, event.log2_speedup, measured=False)
            case "measure":
                self.pending[event.kernel_id] = Pending(candidate=candidate, audit=False)
            case "audit":
                self.audited += 1
                self.pending[event.kernel_id] = Pending(candidate=candidate, audit=True)

    def _measure(self, event: Measured) -> None:
        measurement = event.measurement
        if event.calibration is not None:
            self.calibration.add(event.calibration)
        if event.purpose == "reference":
            self.reference = measurement
        elif event.purpose == "confirmation":
            self._confirm(measurement)
        else:
            self.measured += 1
            self.cached += event.cached
            pending = self.pending.pop(measurement.kernel_id)
            if measurement.failure is not None:
                self.failures[measurement.failure.kind] += 1
            elif measurement.log2_speedup is not None:
                self._archive(pending.candidate, measurement.log2_speedup, measured=True)
                if measurement.log2_speedup > self.incumbent.log2_speedup:
                    self.unconfirmed[measurement.kernel_id] = measurement.log2_speedup

    def _confirm(self, measurement: Measurement) -> None:
        # The second measurement replaces the first: the first was picked for being high, so it is
        # biased upwards; the second was not picked.
        self.confirmations += 1
        self.unconfirmed.pop(measurement.kernel_id, None)
        node = self.archive.get(measurement.kernel_id)
        if node is None:
            return
        if measurement.log2_speedup is None:
            del self.archive[measurement.kernel_id]
        else:
            self.archive[node.kernel_id] = node.model_copy(
                update={"log2_speedup": measurement.log2_speedup, "confirmed": True}
            )
            if measurement.log2_speedup > self.incumbent.log2_speedup:
                self.best = node.kernel_id
        self._refresh_best_child(node.parent_id)
        best = self.incumbent.log2_speedup
        self.unconfirmed = {key: log2 for key, log2 in self.unconfirmed.items() if log2 > best}

    def _refresh_best_child(self, key: str | None) -> None:
        """Forget a child's first measurement where the second has replaced it."""
        parent = self.archive.get(key or "")
        if parent is None:
            return
        children = [node.log2_speedup for node in self.archive.values() if node.parent_id == key]
        self.archive[parent.kernel_id] = parent.model_copy(
            update={"best_child": max(children, default=None)}
        )

    def _archive(self, candidate: Candidate, log2_speedup: float, *, measured: bool) -> None:
        self.archive[candidate.kernel_id] = Node(
            kernel_id=candidate.kernel_id,
            parent_id=candidate.parent_id,
            log2_speedup=log2_speedup,
            origin="measured" if measured else "forecast",
        )
        parent = self.archive.get(candidate.parent_id)
        if parent is not None and (parent.best_child is None or log2_speedup > parent.best_child):
            self.archive[parent.kernel_id] = parent.model_copy(update={"best_child": log2_speedup})
        if len(self.archive) > ARCHIVE_LIMIT + _ARCHIVE_SLACK:
            self._evict()

    def _evict(self) -> None:
        assert self.started is not None
        ranked = sorted(
            self.archive.values(),
            key=lambda node: (node.log2_speedup, node.kernel_id),
            reverse=True,
        )
        keep = {self.started.seed_kernel_id, self.incumbent.kernel_id, *self.unconfirmed}
        survivors = {
            node.kernel_id: node
            for rank, node in enumerate(ranked)
            if rank < ARCHIVE_LIMIT or node.kernel_id in keep
        }
        for node in ranked[ARCHIVE_LIMIT:]:
            # What was expanded below an ancestor stays counted there.
            key = node.kernel_id
            while key not in survivors and key in self.archive:
                key = self.archive[key].parent_id or ""
            if node.visits and node.kernel_id not in survivors and key in survivors:
                visits = survivors[key].visits + node.visits
                survivors[key] = survivors[key].model_copy(update={"visits": visits})
        self.archive = survivors
