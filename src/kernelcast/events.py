"""The typed events a run is made of, in the order in which it can meet them.

A run's state is a fold over these (`state.py`); nothing else about it is kept.
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
    Forecast,
    Measurement,
    Problem,
    Record,
    Spend,
)


class ComponentSpec(Record):
    """A component by name and options, from which it can be built again."""

    name: str
    options: Mapping[str, Any] = {}


class RunSpec(Record):
    """How a run was put together, so that `resume` needs nothing but the store."""

    seed: int = 0
    inspect: bool = False
    reuse: bool = True
    components: Mapping[str, ComponentSpec] = {}


class CalibrationRecord(Record):
    """One forecast held against its outcome; `blind` where the forecast had no say in measuring.

    `stage_crps` is what each stage of a cascade would have scored alone, `objections` whether the
    stages that objected were right to.
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
    """The run exists; its seed kernel is the first parent and the reference of all speedups."""

    kind: Literal["run_started"] = "run_started"
    spec: RunSpec
    problem: Problem
    device: Device
    seed_kernel_id: str
    budget: Budget


class BudgetChanged(Record):
    """The caps are now these."""

    kind: Literal["budget_changed"] = "budget_changed"
    budget: Budget


class Proposed(Record):
    """A kernel was proposed; a duplicate of an earlier one goes no further.

    `repairs` is the kernel that had been sent back, where it is meant to replace one.
    """

    kind: Literal["proposed"] = "proposed"
    kernel_id: str
    parent_id: str
    proposer: str
    request: int
    duplicate: bool = False
    claim: Claim = Claim()
    repairs: str | None = None


class Unanswered(Record):
    """A proposer's answer lacked a kernel: what it had tried, and why nothing came of it."""

    kind: Literal["unanswered"] = "unanswered"
    parent_id: str
    request: int
    missed: tuple[Attempt, ...] = ()
    reason: str = ""
    repairs: str | None = None


class Inspected(Record):
    """Compile-only evidence of a candidate."""

    kind: Literal["inspected"] = "inspected"
    kernel_id: str
    evidence: Evidence


class Forecasted(Record):
    """A forecast of an open candidate; a later one replaces an earlier one."""

    kind: Literal["forecasted"] = "forecasted"
    kernel_id: str
    forecast: Forecast


class Decided(Record):
    """The policy's word on a candidate; `log2_speedup` is the forecast median where trusted."""

    kind: Literal["decided"] = "decided"
    kernel_id: str
    decision: Decision
    log2_speedup: float | None = None


class Reserved(Record):
    """This much may be spent under this entry; refused where a cap would be passed."""

    kind: Literal["reserved"] = "reserved"
    entry: str
    spend: Spend


class Settled(Record):
    """The entry cost this much; `unknown` where a crash or a fault hid the true amount.

    What was spent is recorded as it was, even where a server took more than it was allowed.
    """

    kind: Literal["settled"] = "settled"
    entry: str
    spend: Spend
    unknown: bool = False


class Voided(Record):
    """The entry cost nothing and is closed."""

    kind: Literal["voided"] = "voided"
    entry: str


class Measured(Record):
    """A measurement arrived. `confirmation` is the second, independent one of a new best."""

    kind: Literal["measured"] = "measured"
    measurement: Measurement
    purpose: Literal["reference", "search", "confirmation"]
    cached: bool = False
    calibration: CalibrationRecord | None = None

    @property
    def confirmed_log2(self) -> float | None:
        """The log2 speedup of a second measurement; None for all others, and where it failed."""
        return self.measurement.log2_speedup if self.purpose == "confirmation" else None


class RunEnded(Record):
    """The run stopped for this reason; it may be resumed with a larger budget."""

    kind: Literal["run_ended"] = "run_ended"
    reason: str


Event = Annotated[
    RunStarted
    | BudgetChanged
    | Proposed
    | Unanswered
    | Inspected
    | Forecasted
    | Decided
    | Reserved
    | Settled
    | Voided
    | Measured
    | RunEnded,
    Field(discriminator="kind"),
]
EVENT: TypeAdapter[Event] = TypeAdapter(Event)
