"""The typed events of a run, in the order in which they can occur.

A run's state is a fold over its events (`state.py`); nothing else about a run is kept. A run is a
search, a tuning or a gate: the last three kinds are all that a gate has, the three before them all
that a tuning has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from kernelcast.types import (
    Attempt,
    Budget,
    Claim,
    Decision,
    Device,
    Evidence,
    Failure,
    Forecast,
    Language,
    Measurement,
    Problem,
    Purpose,
    Record,
    Spend,
)


class ComponentSpec(Record):
    """Name and options of a component, from which it can be built again."""

    name: str
    options: Mapping[str, Any] = {}


class RunSpec(Record):
    """How a run was composed, so that `resume` needs only the store."""

    seed: int = 0
    inspect: bool = False
    reuse: bool = True
    components: Mapping[str, ComponentSpec] = {}

    @property
    def writer(self) -> str:
        """What writes the kernels of the run: the proposer's model, or the proposer itself."""
        proposer = self.components.get("proposer")
        return "" if proposer is None else str(proposer.options.get("model", proposer.name))


class CalibrationRecord(Record):
    """One forecast compared with its outcome.

    `blind`: the forecast had no influence on the choice to measure. `stage_crps`: the score that
    each stage of a cascade would have had alone. `objections`: whether the stages that objected
    were right.
    """

    blind: bool
    p_ok: float
    ok: bool
    crps: float | None = None
    half_brier: float | None = None
    confidence: float | None = None
    bin_correct: bool | None = None
    inside_80: bool | None = None
    stage_crps: Mapping[str, float] = {}
    objections: Mapping[str, bool] = {}


class RunStarted(Record):
    """The run begins; its seed kernel is the first parent and the reference of all speedups."""

    kind: Literal["run_started"] = "run_started"
    spec: RunSpec
    problem: Problem
    device: Device
    seed_kernel_id: str
    budget: Budget
    recalled: Mapping[str, int] = {}
    """Earlier runs that the forecaster remembers, and how many measurements of each."""


class BudgetChanged(Record):
    """The run has new caps."""

    kind: Literal["budget_changed"] = "budget_changed"
    budget: Budget


class Proposed(Record):
    """A kernel was proposed; a `duplicate` of an earlier one is not considered further.

    `repairs` is the id of the kernel that was sent back, if this one replaces it, and `repair` the
    number of that repair.
    """

    kind: Literal["proposed"] = "proposed"
    kernel_id: str
    parent_id: str
    proposer: str
    request: int
    duplicate: bool = False
    claim: Claim = Claim()
    repairs: str | None = None
    repair: int = 0


class Unanswered(Record):
    """A proposer's answer lacked a kernel: `missed` are its attempts, `reason` is the cause."""

    kind: Literal["unanswered"] = "unanswered"
    parent_id: str
    request: int
    missed: tuple[Attempt, ...] = ()
    reason: str = ""
    repairs: str | None = None


class Inspected(Record):
    """Compile-only evidence of a candidate, or of the seed kernel."""

    kind: Literal["inspected"] = "inspected"
    kernel_id: str
    evidence: Evidence


class Forecasted(Record):
    """A forecast of an open candidate; a later one replaces an earlier one."""

    kind: Literal["forecasted"] = "forecasted"
    kernel_id: str
    forecast: Forecast


class Decided(Record):
    """The policy decided on a candidate; a trusted one has its forecast median `log2_speedup`."""

    kind: Literal["decided"] = "decided"
    kernel_id: str
    decision: Decision
    log2_speedup: float | None = None


class Reserved(Record):
    """At most this amount may be spent under this entry; refused if it would exceed a cap."""

    kind: Literal["reserved"] = "reserved"
    entry: str
    spend: Spend


class Leased(Record):
    """An attempt to measure a kernel begins under this lease, which replaces an earlier one."""

    kind: Literal["leased"] = "leased"
    entry: str
    lease: int
    attempt: int
    purpose: Purpose
    kernel_id: str
    device: str


class Settled(Record):
    """The entry cost this amount, even if it is more than was reserved.

    `unknown`: a crash or a fault hid the true amount. `lease`: the one under which the result was
    made; the store refuses any but the current one.
    """

    kind: Literal["settled"] = "settled"
    entry: str
    spend: Spend
    unknown: bool = False
    lease: int | None = None


class Lost(Record):
    """An attempt ended without a measurement; its entry is settled as unknown.

    A `suspect` kernel may have ended its worker.
    """

    kind: Literal["lost"] = "lost"
    entry: str
    kernel_id: str
    attempt: int
    reason: str
    suspect: bool = False


class Quarantined(Record):
    """A kernel that ended several workers is not run again."""

    kind: Literal["quarantined"] = "quarantined"
    kernel_id: str
    reason: str


class Voided(Record):
    """The entry cost nothing and is closed."""

    kind: Literal["voided"] = "voided"
    entry: str
    lease: int | None = None


class Measured(Record):
    """A kernel was measured; a `confirmation` is the second, independent measurement.

    New bests are confirmed, and a share of the others, to find nodes that lie.
    """

    kind: Literal["measured"] = "measured"
    measurement: Measurement
    purpose: Purpose
    cached: bool = False
    calibration: CalibrationRecord | None = None

    @property
    def confirmed_log2(self) -> float | None:
        """The log2 speedup of a confirmation that did not fail, else None."""
        return self.measurement.log2_speedup if self.purpose == "confirmation" else None


class Retracted(Record):
    """A result is not believed any more, because its slot drifts or lies.

    The kernel, a child of `parent_id`, is measured again.
    """

    kind: Literal["retracted"] = "retracted"
    entry: str
    kernel_id: str
    parent_id: str
    purpose: Purpose
    device: str
    reason: str

    def withdraws(self, measured: Measured) -> bool:
        """Return whether this is about an earlier event."""
        measurement = measured.measurement
        about = (measurement.kernel_id, measured.purpose, measurement.device_id)
        return not measured.cached and about == (self.kernel_id, self.purpose, self.device)


class RunEnded(Record):
    """The run stopped for this reason; it can be resumed with a larger budget."""

    kind: Literal["run_ended"] = "run_ended"
    reason: str


class TuningStarted(Record):
    """A `Tuner` begins with a kernel on a device; `parameters` are the kernel's, by name."""

    kind: Literal["tuning_started"] = "tuning_started"
    kernel: str
    device: str | None
    parameters: tuple[str, ...]


class Suggested(Record):
    """A tuner suggested a configuration, which is a JSON text as `canonical_parameters` writes."""

    kind: Literal["suggested"] = "suggested"
    configuration: str


class Reported(Record):
    """A configuration was measured; `seconds` is None if it failed, `cost_s` is what it took."""

    kind: Literal["reported"] = "reported"
    configuration: str
    seconds: float | None
    cost_s: float | None = None


class GateStarted(Record):
    """A `Gate` begins with a task on a device."""

    kind: Literal["gate_started"] = "gate_started"
    task: str
    language: Language
    device: str | None


class Asked(Record):
    """A gate decided whether to measure a kernel; without a forecast it had nothing to go by."""

    kind: Literal["asked"] = "asked"
    kernel_id: str
    parent_id: str | None
    decision: Decision
    forecast: Forecast | None = None


class Told(Record):
    """A gate heard of a kernel: its seconds, its speedup, or why it failed."""

    kind: Literal["told"] = "told"
    kernel_id: str
    seconds: float | None = None
    speedup: float | None = None
    failure: Failure | None = None
    cost_s: float = 0.0

    @property
    def rate(self) -> float | None:
        """How fast the kernel is: calls in a second, or its speedup; None if it failed."""
        return self.speedup if self.seconds is None else 1.0 / self.seconds


Event = Annotated[
    RunStarted
    | BudgetChanged
    | Proposed
    | Unanswered
    | Inspected
    | Forecasted
    | Decided
    | Reserved
    | Leased
    | Settled
    | Voided
    | Lost
    | Quarantined
    | Retracted
    | Measured
    | RunEnded
    | TuningStarted
    | Suggested
    | Reported
    | GateStarted
    | Asked
    | Told,
    Field(discriminator="kind"),
]
EVENT: TypeAdapter[Event] = TypeAdapter(Event)
