"""The contracts between the search loop and its parts. Read this first.

A part takes and returns plain records. It never raises for a bad kernel; it raises `SetupError`
(or a subclass) when it cannot work at all. Parts do not know each other: the loop passes on what
one needs of another. All randomness derives from the seed in the request, so that the same events
lead to the same decisions.
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
    Loss,
    Measurement,
    Node,
    Observation,
    PastRun,
    Problem,
    ProposalRequest,
    Proposals,
    Query,
    Spend,
    View,
)


class Named(Protocol):
    """A part that has a name."""

    @property
    def name(self) -> str:
        """Name under which the part is recorded."""


class Concurrent(Named, Protocol):
    """A part whose calls may be slow."""

    @property
    def concurrency(self) -> int:
        """Requests in flight at once on worker threads.

        0 means that a call takes milliseconds at most and is made inline, which keeps a run
        reproducible.
        """


@runtime_checkable
class Proposer(Concurrent, Protocol):
    """Writes new kernels from a parent."""

    @property
    def repairs(self) -> bool:
        """Whether it can repair a kernel that was sent back (`ProposalRequest.repair`).

        A kernel is sent back if it does not compile, a forecaster objects to it, or it is wrong,
        crashes or does not end in time; a kernel is repaired at most twice in a row.
        """

    def quote(self, request: ProposalRequest) -> Spend:
        """Return the most that answering can cost; it is reserved before the call."""

    def propose(self, request: ProposalRequest) -> Proposals:
        """Return up to `request.count` kernels; `exhausted` if this parent has no more to give."""


@runtime_checkable
class Following(Protocol):
    """A proposer that follows its run. What it is told decides, never what it was asked."""

    def admit(self, kernels: Sequence[Kernel]) -> None:
        """Hear which kernels became candidates, in order; each is passed exactly once."""

    def refute(self, kernel: Kernel) -> None:
        """Hear of a candidate that inspection found to fail: it is never measured."""

    def learn(self, observations: Sequence[Observation]) -> None:
        """Learn from measurements, in the order they were made; each is passed exactly once."""


@runtime_checkable
class Forecaster(Concurrent, Protocol):
    """Predicts each candidate's log2 speedup against its anchor, and its chance of failure."""

    @property
    def refreshes(self) -> bool:
        """Whether open candidates are forecast again after each measurement.

        Such forecasts improve with what is learnt and cost nothing.
        """

    def quote(self, queries: Sequence[Query]) -> Spend:
        """Return the most that answering can cost; it is reserved before the call."""

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        """Return one forecast per query, in order. 0 is the anchor's speed, larger is faster."""

    def learn(self, observations: Sequence[Observation]) -> None:
        """Learn from measurements, in the order they were made; each is passed exactly once."""


@runtime_checkable
class Remembering(Protocol):
    """A forecaster that also learns from earlier runs of the store, before its own begins."""

    def remember(self, runs: Sequence[PastRun]) -> None:
        """Learn from other runs, the earliest first; it is called once at most."""


@runtime_checkable
class Policy(Named, Protocol):
    """Decides which candidates are dropped, trusted, measured or audited."""

    @property
    def pool_size(self) -> int:
        """Number of open candidates that it wants to choose from."""

    def decide(self, pool: Sequence[Candidate], view: View) -> dict[str, Decision]:
        """Return decisions by kernel id; other candidates stay open and are shown again.

        Args:
            pool: The open candidates.
            view: The state of the run. `free_slots` measurements can start now; further ones are
                queued. If `proposals_exhausted`, the pool does not grow any more.
        """


@runtime_checkable
class Strategy(Named, Protocol):
    """Chooses which kernels of the archive become parents."""

    def select(
        self, archive: Sequence[Node], count: int, seed: int, *, stale: int = 0
    ) -> list[str]:
        """Return kernel ids of up to `count` parents, best first; at least one.

        Args:
            archive: The kernels to choose from, at least one.
            count: The most parents to return.
            seed: The source of all randomness.
            stale: Number of measurements since the last new best: explore more as it grows.
        """


class Measuring(Protocol):
    """What a backend and a farm have in common."""

    @property
    def device(self) -> Device:
        """The device that the times are true on."""

    @property
    def toolchain(self) -> str:
        """Compiler and flags; part of the measurement cache's key."""

    def quote(self, problem: Problem) -> Spend:
        """Return the most that one measurement can cost: one measurement, and device seconds.

        The backend's own time limits enforce the device seconds.
        """

    def close(self) -> None:
        """End every child process and release what was built; closing twice is allowed."""


@runtime_checkable
class Backend(Named, Measuring, Protocol):
    """Measures a kernel on a device, or inspects it without running it."""

    def inspect(self, problem: Problem, kernel: Kernel) -> Evidence:
        """Compile only; a kernel that does not compile is evidence with a failure."""

    def measure(
        self, problem: Problem, kernel: Kernel, seed: int, effort: Effort = "screening"
    ) -> Measurement:
        """Verify the kernel and time it against the problem's seed, in separate processes."""


@runtime_checkable
class Farm(Measuring, Protocol):
    """Runs jobs on device slots."""

    @property
    def slots(self) -> int:
        """Number of jobs that run at once."""

    @property
    def others(self) -> tuple[Farm, ...]:
        """Farms of other devices, which also measure what runs on this one; closed with it."""

    def inspect(self, problem: Problem, kernel: Kernel) -> Future[Evidence]:
        """Queue a kernel to be compiled only, as `Backend.inspect` does it."""

    def submit(self, problem: Problem, job: Job) -> Future[Measurement | Loss]:
        """Queue a job; the future raises only if the set-up is broken.

        A loss is reported when nothing of the attempt can use its slot any more.
        """

    def cancel(self, entry: str) -> None:
        """Withdraw a job: its future holds a loss, at once if it waits, else when it has ended."""

    def adopt(self, run: str) -> dict[str, Future[Measurement | Loss]]:
        """Return the jobs of a run that outlived the process that submitted them, by entry."""

    def doubted(self) -> dict[str, str]:
        """Return entries whose results are not believed any more, with the reasons; each once."""

    def compare(self, first: Measurement, second: Measurement) -> None:
        """Judge two nodes by what they measured of the same kernel."""


class Callback(Protocol):
    """Watches a run."""

    def on_event(self, event: Event) -> None:
        """Receive an event that is already in the store and in the state; change nothing."""
