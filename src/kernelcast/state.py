"""The state of a run: a fold over its events, and nothing else.

`State.apply` is the only thing that changes it, so a crash and a replay meet in the same state.
Its size is bounded (archive, open candidates, work in flight and sums, never the history), so a
snapshot costs the same after a million events as after a thousand.
"""

from __future__ import annotations

import math
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
    Unanswered,
    Voided,
)
from kernelcast.types import (
    Attempt,
    Audit,
    Budget,
    Candidate,
    Failure,
    FailureKind,
    Measurement,
    Node,
    Resource,
)

ARCHIVE_LIMIT = 1_000
_ARCHIVE_SLACK = 100  # sorting once a hundred insertions keeps eviction cheap and exact
CONFIDENCE_BUCKETS = 10
_REMEMBERED = 8  # attempts on one kernel
_HISTORY = 12  # attempts of a lineage that are told
_MOST_AUDITS = 400
_MOST_SENT_BACK = 16
_LONGEST_COMPLAINT = 600
_LONGEST_MESSAGE = 4_000
_HOPELESS = 8  # measurements from the first on that fail alike, after which a search stops


class Pending(BaseModel):
    """A candidate that will be, or is being, measured."""

    candidate: Candidate
    audit: bool
    chosen: float = 1.0


class SentBack(BaseModel):
    """A candidate whose proposer gets one chance to put it right."""

    kernel_id: str
    parent_id: str
    complaint: str


class FirstFailure(BaseModel):
    """The first kernel of a run that failed in some way, and its message."""

    kernel_id: str
    failure: Failure


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


class StageSums(BaseModel):
    """What one stage of a cascade was asked, cost and changed, and how right it was alone.

    Of its objections, those to kernels that were measured all the same have met their outcome.
    """

    asked: int = 0
    changed: int = 0
    tokens: int = 0
    usd: float = 0.0
    seconds: float = 0.0
    met: int = 0
    crps_sum: float = 0.0
    objected: int = 0
    objections_met: int = 0
    objections_right: int = 0


class State(BaseModel):
    """Where a run stands. Changed only by `apply`."""

    events: int = 0
    started: RunStarted | None = None
    budget: Budget = Budget()
    ended: str | None = None

    requests: int = 0
    latest_request: int = -1
    fruitless: int = 0
    unanswered: str = ""
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
    first_failures: dict[str, FirstFailure] = {}
    alike: int = 0

    expansions: int = 0
    archive: dict[str, Node] = {}
    open: dict[str, Candidate] = {}
    pending: dict[str, Pending] = {}
    unconfirmed: dict[str, float] = {}
    reference: Measurement | None = None
    best: str | None = None
    best_measurement: Measurement | None = None
    calibration: Calibration = Calibration()
    stages: dict[str, StageSums] = {}
    stale: int = 0
    audits: list[Audit] = []
    tried: dict[str, list[Attempt]] = {}
    sent_back: list[SentBack] = []

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
    def hopeless(self) -> Failure | None:
        """The failure that all measurements so far share, once there are `_HOPELESS` of them."""
        if self.alike < _HOPELESS or self.alike < self.measured:
            return None
        return next(iter(self.first_failures.values())).failure

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

    def history(self, kernel_id: str) -> tuple[Attempt, ...]:
        """What was tried in the lineage of a kernel, on itself last; bounded."""
        found: list[Attempt] = []
        node = self.archive.get(kernel_id)
        while node is not None and len(found) < _HISTORY:
            found = [*self.tried.get(node.kernel_id, []), *found]
            node = self.archive.get(node.parent_id or "")
        return tuple(found[-_HISTORY:])

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
                if self.ended is not None:  # who goes on expects the proposer to try again
                    self.ended, self.fruitless, self.unanswered = None, 0, ""
            case Proposed():
                self._propose(event)
            case Unanswered():
                self._count_request(event)
                self.unanswered = event.reason
                for attempt in event.missed:
                    self._note(event.parent_id, attempt)
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
                self._count_stages(event)
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

    def _count_request(self, event: Proposed | Unanswered) -> None:
        self.requests = max(self.requests, event.request + 1)
        if event.request != self.latest_request:
            self.latest_request = event.request
            self.fruitless += 1  # until one of its kernels is new
        self.sent_back = [each for each in self.sent_back if each.kernel_id != event.repairs]

    def _propose(self, event: Proposed) -> None:
        self._count_request(event)
        self.expansions += 1
        if not event.duplicate:
            self.fruitless = 0
            self.unanswered = ""
        parent = self.archive.get(event.parent_id)
        if parent is not None:
            self.archive[parent.kernel_id] = parent.model_copy(update={"visits": parent.visits + 1})
        if event.duplicate:
            self.duplicates += 1
            return
        self.open[event.kernel_id] = Candidate(
            kernel_id=event.kernel_id,
            parent_id=event.parent_id,
            ordinal=self.considered,
            claim=event.claim,
            chain_std=parent.std_log2 if parent is not None else 0.0,
            repairs=event.repairs,
        )
        self.considered += 1

    def _count_stages(self, event: Forecasted) -> None:
        for stage in event.forecast.stages:
            sums = self.stages.setdefault(stage.forecaster, StageSums())
            sums.asked += 1
            sums.changed += stage.changed
            sums.objected += stage.objected
            sums.tokens += stage.usage.tokens
            sums.usd += stage.usage.usd
            sums.seconds += stage.usage.seconds

    def _decide(self, event: Decided) -> None:
        candidate = self.open.pop(event.kernel_id)
        match event.decision.action:
            case "drop":
                self.dropped += 1
                self._drop(candidate, event.decision.reason)
            case "trust":
                self.trusted += 1
                if event.log2_speedup is not None:
                    self._remember(candidate, "forecast", event.log2_speedup, measured=False)
                    self._archive(candidate, event.log2_speedup, measured=False)
            case "measure":
                self.pending[event.kernel_id] = Pending(candidate=candidate, audit=False)
            case "audit":
                self.audited += 1
                self.pending[event.kernel_id] = Pending(
                    candidate=candidate, audit=True, chosen=event.decision.score
                )

    def _measure(self, event: Measured) -> None:
        measurement = event.measurement
        if event.calibration is not None:
            self.calibration.add(event.calibration)
            for name, crps in event.calibration.stage_crps.items():
                sums = self.stages.setdefault(name, StageSums())
                sums.met += 1
                sums.crps_sum += crps
            for name, right in event.calibration.objections.items():
                sums = self.stages.setdefault(name, StageSums())
                sums.objections_met += 1
                sums.objections_right += right
        if event.purpose == "reference":
            self.reference = measurement
        elif event.purpose == "confirmation":
            self._confirm(measurement)
        else:
            self.measured += 1
            self.stale += 1
            self.cached += event.cached
            pending = self.pending.pop(measurement.kernel_id)
            if pending.audit:
                self._count_audit(pending, measurement)
            if measurement.failure is not None:
                self._count_failure(measurement.kernel_id, measurement.failure)
                self._remember(pending.candidate, str(measurement.failure.kind), measured=True)
            elif measurement.log2_speedup is not None:
                self._remember(
                    pending.candidate, "measured", measurement.log2_speedup, measured=True
                )
                self._promote(pending.candidate, measurement.log2_speedup)
                self._archive(pending.candidate, measurement.log2_speedup, measured=True)
                if measurement.log2_speedup > self.incumbent.log2_speedup:
                    self.unconfirmed[measurement.kernel_id] = measurement.log2_speedup

    def _count_failure(self, kernel_id: str, failure: Failure) -> None:
        first = next(iter(self.first_failures.values()), None)
        is_like = first is None or failure.is_like(first.failure)
        # Timeouts may be the machine's doing: no search ends because it is busy.
        if self.alike == self.measured - 1 and is_like and failure.kind is not FailureKind.TIMEOUT:
            self.alike += 1
        self.failures[failure.kind] += 1
        message = failure.message[:_LONGEST_MESSAGE]
        kept = failure.model_copy(update={"message": message})
        self.first_failures.setdefault(
            failure.kind, FirstFailure(kernel_id=kernel_id, failure=kept)
        )

    def _drop(self, candidate: Candidate, reason: str) -> None:
        """Forget a candidate; what is wrong with it, its proposer may be told, once."""
        failure = candidate.evidence.failure if candidate.evidence else None
        objection = candidate.forecast.objection if candidate.forecast else ""
        complaint = f"does not compile: {failure.message}" if failure else objection
        if complaint and candidate.repairs is None:
            entry = SentBack(
                kernel_id=candidate.kernel_id,
                parent_id=candidate.parent_id,
                complaint=complaint[:_LONGEST_COMPLAINT],
            )
            self.sent_back = [*self.sent_back, entry][-_MOST_SENT_BACK:]
        if complaint or (candidate.claim.idea and candidate.forecast is not None):
            outcome = str(failure.kind) if failure else objection or f"not measured: {reason}"
            self._remember(candidate, outcome)

    def _remember(
        self,
        candidate: Candidate,
        outcome: str,
        log2_speedup: float | None = None,
        *,
        measured: bool = False,
    ) -> None:
        """What came of an idea, where the proposer had one."""
        parent = self.archive.get(candidate.parent_id)
        if parent is None or not (candidate.claim.idea or candidate.claim.moves):
            return
        change = None if log2_speedup is None else log2_speedup - parent.log2_speedup
        attempt = Attempt(
            claim=candidate.claim, outcome=outcome, log2_change=change, measured=measured
        )
        self._note(parent.kernel_id, attempt)

    def _note(self, parent_id: str, attempt: Attempt) -> None:
        if parent_id in self.archive:
            told = [*self.tried.get(parent_id, []), attempt]
            self.tried[parent_id] = told[-_REMEMBERED:]

    def _count_audit(self, pending: Pending, measurement: Measurement) -> None:
        forecast = pending.candidate.forecast
        if forecast is None:
            return
        best = self.incumbent.log2_speedup
        found = measurement.log2_speedup
        audit = Audit(
            p_new_best=0.0 if forecast.objection else forecast.chance_above(best),
            new_best=found is not None and found > best,
        )
        self.audits = [*self.audits, audit][-_MOST_AUDITS:]

    def _promote(self, candidate: Candidate, log2_speedup: float) -> None:
        """A chain of forecasts has met its outcome: each of them takes its share of the error.

        The end of a chain is as unsure as all its steps together, so of the error each forecast
        kernel above it answers for the share that its own doubt has in the end's.
        """
        if candidate.forecast is None or not candidate.chain_std:
            return
        density = candidate.forecast.against_reference()
        error = log2_speedup - density.quantile(0.5)
        variance = density.std() ** 2 + candidate.chain_std**2
        node = self.archive.get(candidate.parent_id)
        while node is not None and node.origin == "forecast":
            share = min(node.std_log2**2 / variance, 1.0)
            self.archive[node.kernel_id] = node.model_copy(
                update={
                    "log2_speedup": node.log2_speedup + share * error,
                    "std_log2": node.std_log2 * (1.0 - share) ** 0.5,
                }
            )
            self._refresh_best_child(node.parent_id)
            node = self.archive.get(node.parent_id or "")

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
                self.best, self.best_measurement = node.kernel_id, measurement
                self.stale = 0
        self._refresh_best_child(node.parent_id)
        best = self.incumbent.log2_speedup
        self.unconfirmed = {key: log2 for key, log2 in self.unconfirmed.items() if log2 > best}

    def _refresh_best_child(self, key: str | None) -> None:
        """Forget what was believed of a child before it was measured, or measured again."""
        parent = self.archive.get(key or "")
        if parent is None:
            return
        children = [node.log2_speedup for node in self.archive.values() if node.parent_id == key]
        self.archive[parent.kernel_id] = parent.model_copy(
            update={"best_child": max(children, default=None)}
        )

    def _archive(self, candidate: Candidate, log2_speedup: float, *, measured: bool) -> None:
        doubt = 0.0
        if not measured and candidate.forecast is not None:
            doubt = math.hypot(candidate.forecast.distribution.std(), candidate.chain_std)
        self.archive[candidate.kernel_id] = Node(
            kernel_id=candidate.kernel_id,
            parent_id=candidate.parent_id,
            log2_speedup=log2_speedup,
            origin="measured" if measured else "forecast",
            std_log2=doubt,
            behaviour=candidate.evidence.behaviour if candidate.evidence else (),
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
        self.tried = {key: told for key, told in self.tried.items() if key in survivors}
