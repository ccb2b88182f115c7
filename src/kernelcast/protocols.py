"""The contracts between the loop and its parts, on one page. Read this first.

Every part is handed plain records and returns plain records. A part never raises for a bad
kernel; it raises `SetupError` (or a subclass) when it cannot work at all. Parts do not know each
other: what one needs of another reaches it through the loop. All randomness derives from a seed
in the request, so the same events lead to the same decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol, runtime_checkable

from kernelcast.events import Event
from kernelcast.types import (
    Candidate,
    Decision,
    Device,
    Effort,
    Evidence,
    Forecast,
    Job,
    Kernel,
    Measurement,
    Node,
    Observation,
    Problem,
    ProposalRequest,
    Proposals,
    Query,
    Spend,
    View,
)


@runtime_checkable
class Proposer(Protocol):
    """Writes new kernels from a parent.

    `concurrency` requests may be in flight at once on worker threads; 0 means that a call takes
    microseconds to milliseconds and is made inline, which keeps a run reproducible. One that
    `repairs` is sent back, once, what does not compile or was objected to.
    """

    @property
    def name(self) -> str:
        """Name under which it is recorded."""
        ...

    @property
    def concurrency(self) -> int:
        """Requests in flight at once; 0 is inline."""
        ...

    @property
    def repairs(self) -> bool:
        """Whether it can put right a kernel that was sent back (`ProposalRequest.repair`)."""
        ...

    def quote(self, request: ProposalRequest) -> Spend:
        """The most that answering can cost; reserved before the call."""
        ...

    def propose(self, request: ProposalRequest) -> Proposals:
        """Up to `request.count` kernels. `exhausted` when this parent has nothing left to give."""
        ...


@runtime_checkable
class Forecaster(Protocol):
    """Predicts each candidate's log2 speedup against its anchor, and its chance of failure.

    `concurrency` as for proposers. `refreshes`: forecasts improve with what is learnt and cost
    nothing, so open candidates are forecast again after each measurement.
    """

    @property
    def name(self) -> str:
        """Name under which it is recorded."""
        ...

    @property
    def concurrency(self) -> int:
        """Requests in flight at once; 0 is inline."""
        ...

    @property
    def refreshes(self) -> bool:
        """Whether open candidates are forecast anew after each measurement."""
        ...

    def quote(self, queries: Sequence[Query]) -> Spend:
        """The most that answering can cost; reserved before the call."""
        ...

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        """One forecast a query, in order. Density: larger is faster, 0 is the anchor's speed."""
        ...

    def learn(self, observations: Sequence[Observation]) -> None:
        """Take in measurements, in the order they were made; each is given exactly once."""
        ...


@runtime_checkable
class Policy(Protocol):
    """Decides which candidates are dropped, trusted, measured or audited.

    `pool_size` is how many open candidates it wants to choose from.
    """

    @property
    def name(self) -> str:
        """Name under which it is recorded."""
        ...

    @property
    def pool_size(self) -> int:
        """Open candidates it wants to choose from."""
        ...

    def decide(self, pool: Sequence[Candidate], view: View) -> dict[str, Decision]:
        """Decisions by kernel id; a candidate that is not mentioned stays open and is shown again.

        `view.free_slots` measurements could start now; deciding on more queues them. Where
        `view.proposals_exhausted`, waiting for a fuller pool is in vain.
        """
        ...


@runtime_checkable
class Strategy(Protocol):
    """Chooses which kernels of the archive become parents.

    `stale` counts the measurements since the last new best: where that grows, look elsewhere.
    """

    @property
    def name(self) -> str:
        """Name under which it is recorded."""
        ...

    def select(
        self, archive: Sequence[Node], count: int, seed: int, *, stale: int = 0
    ) -> list[str]:
        """Kernel ids of up to `count` parents, best first; never empty while the archive is not."""
        ...


@runtime_checkable
class Backend(Protocol):
    """Measures a kernel on a device, or inspects it without running it."""

    @property
    def name(self) -> str:
        """Name under which it is recorded."""
        ...

    @property
    def device(self) -> Device:
        """What the times are true on."""
        ...

    @property
    def toolchain(self) -> str:
        """Compiler and flags, part of the measurement cache's key."""
        ...

    def inspect(self, problem: Problem, kernel: Kernel) -> Evidence:
        """Compile only; a kernel that does not compile is evidence with a failure."""
        ...

    def measure(
        self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
    ) -> Measurement:
        """Verify and time against the problem's seed kernel, in processes of their own."""
        ...

    def quote(self, problem: Problem) -> Spend:
        """The most that one measurement can cost: one measurement, and device seconds.

        The backend's own time limits hold it to the device seconds.
        """
        ...

    def close(self) -> None:
        """End every child process and remove what was built."""
        ...


@runtime_checkable
class Farm(Protocol):
    """Runs jobs on device slots."""

    @property
    def slots(self) -> int:
        """Jobs at a time."""
        ...

    @property
    def device(self) -> Device:
        """What the times are true on."""
        ...

    @property
    def toolchain(self) -> str:
        """Compiler and flags, part of the measurement cache's key."""
        ...

    def quote(self, problem: Problem) -> Spend:
        """The most that one job can cost."""
        ...

    def inspect(self, problem: Problem, kernel: Kernel) -> Evidence:
        """Compile only, now."""
        ...

    def submit(self, problem: Problem, job: Job) -> Future[Measurement]:
        """Queue a job; the future raises only when the set-up is broken."""
        ...

    def close(self) -> None:
        """Stop what is running and release the slots."""
        ...


class Callback(Protocol):
    """Watches a run: called with each event after it is in the store and in the state."""

    def on_event(self, event: Event) -> None:
        """Look, do not touch."""
        ...
