"""The state of a run: a fold over its events.

Only `State.apply` changes the state, so a replay after a crash leads to the same state. Its size is
bounded (archive, open candidates, work in flight and sums, but no history), so a snapshot costs the
same after a million events as after a thousand.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Literal

from pydantic import BaseModel

from kernelcast.errors import StoreError
from kernelcast.events import (
    Asked,
    BudgetChanged,
    CalibrationRecord,
    Decided,
    Event,
    Forecasted,
    GateStarted,
    Inspected,
    Leased,
    Lost,
    Measured,
    Proposed,
    Quarantined,
    Reported,
    Reserved,
    Retracted,
    RunEnded,
    RunStarted,
    Settled,
    Told,
    TuningStarted,
    Unanswered,
    Voided,
)
from kernelcast.types import (
    Attempt,
    Audit,
    Budget,
    Candidate,
    CaseSpeed,
    Failure,
    FailureKind,
    Measurement,
    Node,
    Purpose,
    Resource,
    shortened,
)

ARCHIVE_LIMIT = 1_000
_ARCHIVE_SLACK = 100  # insertions between two evictions, each of which sorts the archive
CONFIDENCE_BUCKETS = 10
_MOST_ATTEMPTS = 8  # kept per kernel
_HISTORY = 12  # attempts of a lineage that a proposer sees
_MOST_AUDITS = 400
_FASTEST = 32  # kernels of a gate
_MOST_SENT_BACK = 16
_LONGEST_COMPLAINT = 2_000
_LONGEST_OUTCOME = 160
_MOST_REPAIRS = 2  # of one kernel, one after another
_LONGEST_MESSAGE = 4_000
_MOST_WAITING = 100  # kernels for another device
_HOPELESS = 8  # a search stops if so many first measurements fail alike
_FAULTS = {
    FailureKind.COMPILE_ERROR: "does not compile",
    FailureKind.WRONG_RESULT: "gives a wrong result",
    FailureKind.CRASH: "fails as it runs",
    FailureKind.TIMEOUT: "does not end in time",
}


class Pending(BaseModel):
    """A candidate that waits for its measurement, or is being measured."""

    candidate: Candidate
    audit: bool
    chosen: float = 1.0


class SentBack(BaseModel):
    """A candidate that its proposer may repair; `repair` numbers the repair."""

    kernel_id: str
    parent_id: str
    complaint: str
    repair: int = 1


class FirstFailure(BaseModel):
    """The first kernel of a run with some kind of failure."""

    kernel_id: str
    failure: Failure


class CalibrationSums(BaseModel):
    """Sums over the forecasts whose outcome is known."""

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
        """Add one forecast and its outcome."""
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
        """Share of outcomes inside the central 80% interval; 0.8 is best."""
        return self.inside_80 / self.timed if self.timed else None

    @property
    def expected_calibration_error(self) -> float | None:
        """Mean gap between confidence and share of right bins, weighted by count."""
        if not self.timed:
            return None
        gaps = zip(self.bucket_confidence, self.bucket_correct, strict=True)
        return sum(abs(confidence - correct) for confidence, correct in gaps) / self.timed


class StageSums(BaseModel):
    """Requests, cost, changed decisions and scores of one stage of a cascade.

    `met` forecasts and `objections_met` objections were followed by a measurement.
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


class Elsewhere(BaseModel):
    """What is measured of a run's kernels on another device than the one that it searches on.

    `waiting`: the fastest kernels that are to be measured there, with their log2 speedups here.
    `unconfirmed`: log2 speedups there of kernels that may be the new best.
    """

    reference: Measurement | None = None
    waiting: dict[str, float] = {}
    unconfirmed: dict[str, float] = {}
    measured: int = 0
    best: str | None = None
    best_measurement: Measurement | None = None

    @property
    def best_log2(self) -> float:
        """Log2 speedup of the best kernel there that was measured twice; 0 is the seed's."""
        best = self.best_measurement
        return (best.log2_speedup or 0.0) if best is not None else 0.0

    def add(self, key: str, log2_speedup: float) -> None:
        """Let a kernel wait; the slowest gives way."""
        self.waiting[key] = log2_speedup
        if len(self.waiting) > _MOST_WAITING:
            del self.waiting[min(self.waiting, key=self.waiting.__getitem__)]

    def measure(self, measurement: Measurement, purpose: Purpose) -> None:
        """Take a measurement that was made there."""
        key, log2_speedup = measurement.kernel_id, measurement.log2_speedup
        if purpose == "reference":
            self.reference = measurement
        elif purpose == "search":
            self.waiting.pop(key, None)
            self.measured += 1
            if log2_speedup is not None and log2_speedup > self.best_log2:
                self.unconfirmed[key] = log2_speedup
        else:
            self.unconfirmed.pop(key, None)
            if log2_speedup is not None and log2_speedup > self.best_log2:
                self.best, self.best_measurement = key, measurement
                self.unconfirmed = {
                    other: log2 for other, log2 in self.unconfirmed.items() if log2 > log2_speedup
                }

    def retract(self, key: str, purpose: Purpose, log2_speedup: float) -> None:
        """Forget a measurement, so that it is made again."""
        if purpose == "reference":
            self.reference = None
        elif purpose == "search":
            self.unconfirmed.pop(key, None)
            self.add(key, log2_speedup)
        elif self.best == key and self.best_measurement is not None:
            self.unconfirmed[key] = self.best_log2
            self.best = self.best_measurement = None


class Tuning(BaseModel):
    """The state of a run that is a `Tuner`'s; the tuner itself reads the events."""

    started: TuningStarted
    reports: int = 0
    cost_s: float = 0.0
    best: Reported | None = None

    def report(self, event: Reported) -> None:
        """Count a report, and keep the fastest."""
        self.reports += 1
        self.cost_s += event.cost_s or 0.0
        if event.seconds is not None:
            best = None if self.best is None else self.best.seconds
            if best is None or event.seconds < best:
                self.best = event


class Gating(BaseModel):
    """The state of a run that is a `Gate`'s; the gate itself reads the events."""

    started: GateStarted
    asked: int = 0
    to_measure: int = 0
    told: int = 0
    failed: int = 0
    cost_s: float = 0.0
    fastest: dict[str, Told] = {}
    """A few kernels by id, so that another is the best if the best is told again as slower."""

    def tell(self, event: Told) -> None:
        """Count what was told, and keep the fastest."""
        self.told += 1
        self.failed += event.failure is not None
        self.cost_s += event.cost_s
        self.fastest.pop(event.kernel_id, None)
        if event.rate is not None:
            self.fastest[event.kernel_id] = event
        if len(self.fastest) > _FASTEST:
            del self.fastest[min(self.fastest, key=self._rate)]

    @property
    def best(self) -> Told | None:
        """The fastest kernel; None before any."""
        return self.fastest[max(self.fastest, key=self._rate)] if self.fastest else None

    def _rate(self, kernel_id: str) -> float:
        return self.fastest[kernel_id].rate or 0.0


class State(BaseModel):
    """The state of a run, changed only by `apply`."""

    events: int = 0
    kinds: Counter[str] = Counter()
    """Events by kind, so that none can be dropped from the store unnoticed."""
    started: RunStarted | None = None
    tuning: Tuning | None = None
    gating: Gating | None = None
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
    calibration: CalibrationSums = CalibrationSums()
    stages: dict[str, StageSums] = {}
    stale: int = 0
    audits: list[Audit] = []
    tried: dict[str, list[Attempt]] = {}
    sent_back: list[SentBack] = []

    spent: dict[Resource, float] = {}
    entries: dict[str, dict[Resource, float]] = {}
    attempts: int = 0
    leases: dict[str, Leased] = {}
    lost: int = 0
    losses: dict[str, int] = {}
    suspects: dict[str, int] = {}
    quarantined: int = 0
    retracted: int = 0
    elsewhere: dict[str, Elsewhere] = {}

    # ------------------------------------------------------------------------------- reading

    @property
    def incumbent(self) -> Node:
        """The fastest kernel whose speed was measured twice; the seed at first."""
        if self.started is None:
            raise StoreError("this run has no run_started event: it is empty or damaged")
        return self.archive[self.best or self.started.seed_kernel_id]

    @property
    def hopeless(self) -> Failure | None:
        """The failure that all measurements share, if there are at least `_HOPELESS`."""
        if self.alike < _HOPELESS or self.alike < self.measured:
            return None
        return next(iter(self.first_failures.values())).failure

    @property
    def made_by(self) -> Literal["search", "tuner", "gate"]:
        """What writes the run."""
        if self.tuning is not None:
            return "tuner"
        return "search" if self.gating is None else "gate"

    @property
    def noise_log2(self) -> float | None:
        """Largest log2 difference that is noise, by the reference against itself; None: unknown."""
        return self.reference.noise_log2 if self.reference else None

    def reserved(self, resource: Resource) -> float:
        """Return the sum of the open reservations."""
        return sum(spend.get(resource, 0.0) for spend in self.entries.values())

    def left(self, resource: Resource) -> float:
        """Return what can still be reserved; infinite without a cap."""
        cap = self.budget.caps().get(resource)
        if cap is None:
            return math.inf
        return cap - self.spent.get(resource, 0.0) - self.reserved(resource)

    def anchor(self, kernel_id: str) -> Node:
        """Return the nearest measured kernel of the lineage, or the incumbent."""
        node = self.archive.get(kernel_id)
        while node is not None and node.origin == "forecast":
            node = self._parent(node)
        return node or self.incumbent

    def history(self, kernel_id: str) -> tuple[Attempt, ...]:
        """Return the latest attempts in the lineage of a kernel, those on itself last."""
        attempts: list[Attempt] = []
        node = self.archive.get(kernel_id)
        while node is not None and len(attempts) < _HISTORY:
            attempts = [*self.tried.get(node.kernel_id, []), *attempts]
            node = self._parent(node)
        return tuple(attempts[-_HISTORY:])

    # ------------------------------------------------------------------------------- folding

    def apply(self, event: Event) -> None:
        """Apply one event."""
        self.events += 1
        self.kinds[event.kind] += 1
        match event:
            case RunStarted(seed_kernel_id=seed):
                self.started = event
                self.budget = event.budget
                self.archive[seed] = Node(
                    kernel_id=seed, parent_id=None, log2_speedup=0.0, origin="seed", confirmed=True
                )
            case BudgetChanged():
                self.budget = event.budget
                if self.ended is not None:  # a resumed run gives the proposer another chance
                    self.ended, self.fruitless, self.unanswered = None, 0, ""
            case Proposed():
                self._propose(event)
            case Unanswered():
                self._count_request(event)
                self.unanswered = event.reason
                for attempt in event.missed:
                    self._note(event.parent_id, attempt)
            case Inspected(kernel_id=key):
                if key in self.open:
                    self.open[key] = self.open[key].model_copy(update={"evidence": event.evidence})
                else:
                    self._change(self.archive[key], evidence=event.evidence)
            case Forecasted(kernel_id=key):
                self.forecasts += 1
                self.open[key] = self.open[key].model_copy(update={"forecast": event.forecast})
                self._count_stages(event)
            case Decided():
                self._decide(event)
            case Reserved():
                self.attempts += 1
                self.entries[event.entry] = dict(event.spend)
            case Leased():
                self.leases[event.entry] = event
            case Settled():
                self._close(event.entry)
                for resource, amount in event.spend.items():
                    self.spent[resource] = self.spent.get(resource, 0.0) + amount
            case Voided():
                self._close(event.entry)
            case Lost(kernel_id=key):
                self.lost += 1
                self.losses[key] = self.losses.get(key, 0) + 1
                self.suspects[key] = self.suspects.get(key, 0) + event.suspect
            case Quarantined():
                self.quarantined += 1
            case Retracted():
                self._retract(event)
            case Measured():
                self._measure(event)
            case RunEnded():
                self.ended = event.reason
            case TuningStarted():
                self.tuning = Tuning(started=event)
            case Reported():
                assert self.tuning is not None
                self.tuning.report(event)
            case GateStarted():
                self.gating = Gating(started=event)
            case Asked():
                assert self.gating is not None
                self.gating.asked += 1
                self.gating.to_measure += event.decision.measures
            case Told():
                assert self.gating is not None
                self.gating.tell(event)

    def _close(self, entry: str) -> None:
        del self.entries[entry]
        self.leases.pop(entry, None)

    def _count_request(self, event: Proposed | Unanswered) -> None:
        self.requests = max(self.requests, event.request + 1)
        if event.request != self.latest_request:
            self.latest_request = event.request
            self.fruitless += 1  # reset by the first new kernel of the request
        self.sent_back = [entry for entry in self.sent_back if entry.kernel_id != event.repairs]

    def _propose(self, event: Proposed) -> None:
        self._count_request(event)
        self.expansions += 1
        parent = self.archive.get(event.parent_id)
        if parent is not None:
            self._change(parent, visits=parent.visits + 1)
        if event.duplicate:
            self.duplicates += 1
            return
        self.fruitless, self.unanswered = 0, ""
        self.open[event.kernel_id] = Candidate(
            kernel_id=event.kernel_id,
            parent_id=event.parent_id,
            ordinal=self.considered,
            claim=event.claim,
            chain_std=parent.std_log2 if parent is not None else 0.0,
            repair=event.repair,
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
        candidate, decision = self.open.pop(event.kernel_id), event.decision
        match decision.action:
            case "drop":
                self.dropped += 1
                self._drop(candidate, decision.reason)
            case "trust":
                self.trusted += 1
                if event.log2_speedup is not None:
                    self._remember(candidate, "forecast", event.log2_speedup, measured=False)
                    self._archive(candidate, event.log2_speedup)
            case "measure":
                self.pending[event.kernel_id] = Pending(candidate=candidate, audit=False)
            case "audit":
                self.audited += 1
                self.pending[event.kernel_id] = Pending(
                    candidate=candidate, audit=True, chosen=decision.score
                )

    def _measure(self, event: Measured) -> None:
        measurement = event.measurement
        self.losses.pop(measurement.kernel_id, None)
        self.suspects.pop(measurement.kernel_id, None)
        if event.calibration is not None:
            self._calibrate(event.calibration)
        if not self._is_here(measurement.device_id):
            self._measure_elsewhere(measurement, event.purpose)
            return
        if event.purpose == "reference":
            self.reference = measurement
            seed = self.archive.get(measurement.kernel_id)
            if seed is not None and measurement.timing is not None:
                self._change(seed, cases=measurement.timing.speeds)
            return
        if event.purpose == "confirmation":
            self._confirm(measurement)
            return
        self.measured += 1
        self.stale += 1
        self.cached += event.cached
        pending = self.pending.pop(measurement.kernel_id)
        candidate, log2_speedup = pending.candidate, measurement.log2_speedup
        if pending.audit:
            self._count_audit(candidate, log2_speedup)
        if measurement.failure is not None:
            failure = measurement.failure
            self._count_failure(measurement.kernel_id, failure)
            self._remember(candidate, _outcome_of(failure), measured=True)
            if failure.is_mendable:
                self._send_back(candidate, f"{_FAULTS[failure.kind]}: {failure.message}")
        elif measurement.timing is not None and log2_speedup is not None:
            self._remember(candidate, "measured", log2_speedup, measured=True)
            self._correct_ancestors(candidate, log2_speedup)
            self._archive(candidate, log2_speedup, measurement.timing.speeds)
            if log2_speedup > self.incumbent.log2_speedup:
                self.unconfirmed[measurement.kernel_id] = log2_speedup
            for other in self.elsewhere.values():
                other.add(measurement.kernel_id, log2_speedup)

    def _is_here(self, device: str) -> bool:
        """Return whether a device is the one that the run searches on."""
        return self.started is None or device == self.started.device.id

    def _measure_elsewhere(self, measurement: Measurement, purpose: Purpose) -> None:
        other = self.elsewhere.setdefault(measurement.device_id, Elsewhere())
        if purpose == "reference" and other.reference is None:
            for node in self.archive.values():
                if node.origin == "measured":
                    other.add(node.kernel_id, node.log2_speedup)
        other.measure(measurement, purpose)

    def _retract(self, event: Retracted) -> None:
        self.retracted += 1
        key, node = event.kernel_id, self.archive.get(event.kernel_id)
        if not self._is_here(event.device):
            log2_speedup = node.log2_speedup if node is not None else 0.0
            self.elsewhere[event.device].retract(key, event.purpose, log2_speedup)
        elif event.purpose == "reference":
            self.reference = None
        elif event.purpose == "search":
            if node is not None and node.confirmed:
                return  # the second measurement has replaced it
            self.unconfirmed.pop(key, None)
            if node is not None:
                del self.archive[key]
                self._refresh_best_child(node.parent_id)
            self.sent_back = [entry for entry in self.sent_back if entry.kernel_id != key]
            candidate = Candidate(kernel_id=key, parent_id=event.parent_id, ordinal=self.considered)
            self.pending[key] = Pending(candidate=candidate, audit=False)
        elif node is not None:
            self._change(node, confirmed=False)
            self.unconfirmed[key] = node.log2_speedup
            if self.best == key:
                confirmed = [other for other in self.archive.values() if other.confirmed]
                self.best = max(confirmed, key=lambda other: other.log2_speedup).kernel_id
                self.best_measurement = None

    def _calibrate(self, record: CalibrationRecord) -> None:
        self.calibration.add(record)
        for name, crps in record.stage_crps.items():
            sums = self.stages.setdefault(name, StageSums())
            sums.met += 1
            sums.crps_sum += crps
        for name, right in record.objections.items():
            sums = self.stages.setdefault(name, StageSums())
            sums.objections_met += 1
            sums.objections_right += right

    def _count_failure(self, kernel_id: str, failure: Failure) -> None:
        first = next(iter(self.first_failures.values()), None)
        is_like = first is None or failure.is_like(first.failure)
        # A busy machine can cause timeouts: they do not end a search.
        if self.alike == self.measured - 1 and is_like and failure.kind is not FailureKind.TIMEOUT:
            self.alike += 1
        self.failures[failure.kind] += 1
        short = failure.model_copy(update={"message": failure.message[:_LONGEST_MESSAGE]})
        self.first_failures.setdefault(
            failure.kind, FirstFailure(kernel_id=kernel_id, failure=short)
        )

    def _drop(self, candidate: Candidate, reason: str) -> None:
        """Send a dropped candidate back to its proposer if something is wrong with it."""
        evidence = candidate.evidence
        failure = evidence.failure if evidence else None
        objection = candidate.forecast.objection if candidate.forecast else ""
        complaint = f"{evidence.verdict}: {failure.message}" if evidence and failure else objection
        if complaint:
            self._send_back(candidate, complaint)
        if complaint or (candidate.claim.idea and candidate.forecast is not None):
            outcome = _outcome_of(failure) if failure else objection or f"not measured: {reason}"
            self._remember(candidate, outcome)

    def _send_back(self, candidate: Candidate, complaint: str) -> None:
        """Let the proposer repair a candidate, unless that was tried often enough."""
        if candidate.repair >= _MOST_REPAIRS:
            return
        entry = SentBack(
            kernel_id=candidate.kernel_id,
            parent_id=candidate.parent_id,
            complaint=shortened(complaint, _LONGEST_COMPLAINT),
            repair=candidate.repair + 1,
        )
        self.sent_back = [*self.sent_back, entry][-_MOST_SENT_BACK:]

    def _remember(
        self,
        candidate: Candidate,
        outcome: str,
        log2_speedup: float | None = None,
        *,
        measured: bool = False,
    ) -> None:
        """Note the outcome of a proposer's idea at the parent."""
        parent, claim = self.archive.get(candidate.parent_id), candidate.claim
        if parent is None or not (claim.idea or claim.moves):
            return
        change = None if log2_speedup is None else log2_speedup - parent.log2_speedup
        attempt = Attempt(claim=claim, outcome=outcome, log2_change=change, measured=measured)
        self._note(parent.kernel_id, attempt)

    def _note(self, parent_id: str, attempt: Attempt) -> None:
        if parent_id in self.archive:
            attempts = [*self.tried.get(parent_id, []), attempt]
            self.tried[parent_id] = attempts[-_MOST_ATTEMPTS:]

    def _count_audit(self, candidate: Candidate, log2_speedup: float | None) -> None:
        forecast = candidate.forecast
        if forecast is None:
            return
        best = self.incumbent.log2_speedup
        audit = Audit(
            p_new_best=0.0 if forecast.objection else forecast.chance_above(best),
            new_best=log2_speedup is not None and log2_speedup > best,
        )
        self.audits = [*self.audits, audit][-_MOST_AUDITS:]

    def _correct_ancestors(self, candidate: Candidate, log2_speedup: float) -> None:
        """Distribute the error of a measured candidate over the chain of forecasts above it.

        Each forecast ancestor takes the share of the error that its variance has in the variance
        of the candidate's whole chain.
        """
        if candidate.forecast is None or not candidate.chain_std:
            return
        density = candidate.forecast.against_reference()
        error = log2_speedup - density.quantile(0.5)
        variance = density.std() ** 2 + candidate.chain_std**2
        node = self.archive.get(candidate.parent_id)
        while node is not None and node.origin == "forecast":
            share = min(node.std_log2**2 / variance, 1.0)
            self._change(
                node,
                log2_speedup=node.log2_speedup + share * error,
                std_log2=node.std_log2 * (1.0 - share) ** 0.5,
            )
            self._refresh_best_child(node.parent_id)
            node = self._parent(node)

    def _confirm(self, measurement: Measurement) -> None:
        # The second measurement replaces the first. The first is biased upwards, because it was
        # chosen for being high; the second is not.
        self.confirmations += 1
        self.unconfirmed.pop(measurement.kernel_id, None)
        node = self.archive.get(measurement.kernel_id)
        if node is None:
            return
        if measurement.log2_speedup is None:
            del self.archive[measurement.kernel_id]
        else:
            cases = measurement.timing.speeds if measurement.timing else node.cases
            log2_speedup = measurement.log2_speedup
            self._change(node, log2_speedup=log2_speedup, confirmed=True, cases=cases)
            if measurement.log2_speedup > self.incumbent.log2_speedup:
                self.best, self.best_measurement = node.kernel_id, measurement
                self.stale = 0
        self._refresh_best_child(node.parent_id)
        best = self.incumbent.log2_speedup
        self.unconfirmed = {key: log2 for key, log2 in self.unconfirmed.items() if log2 > best}

    def _change(self, node: Node, **fields: Any) -> None:
        self.archive[node.kernel_id] = node.model_copy(update=fields)

    def _parent(self, node: Node) -> Node | None:
        return self.archive.get(node.parent_id or "")

    def _refresh_best_child(self, key: str | None) -> None:
        parent = self.archive.get(key or "")
        if parent is not None:
            nodes = self.archive.values()
            children = [node.log2_speedup for node in nodes if node.parent_id == key]
            self._change(parent, best_child=max(children, default=None))

    def _archive(
        self, candidate: Candidate, log2_speedup: float, cases: tuple[CaseSpeed, ...] | None = None
    ) -> None:
        """Add a kernel as a parent: a measured one with the speed of its cases."""
        std_log2 = 0.0
        if cases is None and candidate.forecast is not None:
            std_log2 = math.hypot(candidate.forecast.distribution.std(), candidate.chain_std)
        self.archive[candidate.kernel_id] = Node(
            kernel_id=candidate.kernel_id,
            parent_id=candidate.parent_id,
            log2_speedup=log2_speedup,
            origin="forecast" if cases is None else "measured",
            std_log2=std_log2,
            behaviour=candidate.evidence.behaviour if candidate.evidence else (),
            cases=cases or (),
            evidence=candidate.evidence,
        )
        parent = self.archive.get(candidate.parent_id)
        if parent is not None and (parent.best_child is None or log2_speedup > parent.best_child):
            self._change(parent, best_child=log2_speedup)
        if len(self.archive) > ARCHIVE_LIMIT + _ARCHIVE_SLACK:
            self._evict()

    def _evict(self) -> None:
        """Remove the slowest kernels; their visits are added to the nearest kept ancestor."""
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
            if not node.visits or node.kernel_id in survivors:
                continue
            ancestor = self._parent(node)
            while ancestor is not None and ancestor.kernel_id not in survivors:
                ancestor = self._parent(ancestor)
            if ancestor is not None:
                heir = survivors[ancestor.kernel_id]
                visits = heir.visits + node.visits
                survivors[heir.kernel_id] = heir.model_copy(update={"visits": visits})
        self.archive = survivors
        self.tried = {key: tried for key, tried in self.tried.items() if key in survivors}


def _outcome_of(failure: Failure) -> str:
    """What a failure was, in a line."""
    headline = failure.headline
    if len(headline) > _LONGEST_OUTCOME:
        headline = f"{headline[:_LONGEST_OUTCOME]} ..."
    return f"{failure.kind} ({headline})" if headline else str(failure.kind)
