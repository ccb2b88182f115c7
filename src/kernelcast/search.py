"""The search loop: proposals in, decisions made, measurements out, everything an event.

The loop knows the protocols and the farm, never a concrete part. `run` is built on `ask` and
`tell`, so that another system can own the loop. There are no step barriers: whenever something
ends, everything that can start is started. Only the calling thread touches the run.

`thinking` says what to measure, `measuring` keeps the jobs, and both enter in one `journal` what
happens.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kernelcast import events
from kernelcast.canonical import as_kernel
from kernelcast.errors import SetupError, require_positive
from kernelcast.events import Event, RunSpec
from kernelcast.journal import Journal
from kernelcast.measuring import Measuring
from kernelcast.parts import Parts, read_run
from kernelcast.protocols import Callback, Remembering
from kernelcast.recall import past_runs, recallable, tunes
from kernelcast.run import Run
from kernelcast.state import State
from kernelcast.store import DEFAULT_STORE, Store
from kernelcast.thinking import Thinking
from kernelcast.types import Budget, Failure, Job, Kernel, Loss, Measurement, Problem, Resource

INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Result:
    """The best kernel of a run; `confirmed` if it was measured twice."""

    run: str
    kernel: Kernel
    log2_speedup: float
    confirmed: bool
    state: State

    @property
    def speedup(self) -> float:
        """Speedup of the best kernel against the seed, by its second, independent measurement."""
        return float(2.0**self.log2_speedup)


class Search:
    """One search on one problem: `run(budget)` does it all, `ask` and `tell` do it step by step.

    Args:
        problem: What to compute.
        parts: Proposer, forecaster, policy, strategy and farm.
        store: Where the run is recorded.
        spec: Seed and options of the run, and how its parts are built again by `resume`.
        name: Name of the run; by default from the problem and the time.
        callbacks: Receive every event.
    """

    def __init__(
        self,
        problem: Problem,
        parts: Parts,
        store: Store,
        *,
        spec: RunSpec | None = None,
        name: str | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.problem = problem
        self.parts = parts
        self.store = store
        self.spec = spec or RunSpec()
        self.name = (
            name or f"{problem.name[:60]}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        )
        self.callbacks = list(callbacks)
        self._budget = Budget()
        self._journal = Journal(problem, parts, self.spec, self.callbacks)
        self._thinking = Thinking(self._journal)
        self._measuring = Measuring(self._journal, store, self._thinking)

    # ------------------------------------------------------------------------- life of a run

    @classmethod
    def from_toml(cls, path: str | Path, callbacks: Sequence[Callback] = ()) -> Search:
        """Return the search that a file (`search.toml`) describes, with the file's budget.

        Raises:
            SetupError: The file is missing or wrong, or a part cannot be built.
        """
        file = read_run({}, config=path)
        search = cls(
            file.problem,
            Parts.build(file.spec.components, file.problem),
            Store.open(file.store or DEFAULT_STORE),
            spec=file.spec,
            name=file.name,
            callbacks=callbacks,
        )
        search._budget = file.budget
        return search

    @classmethod
    def resume(
        cls,
        store: Store,
        name: str,
        *,
        parts: Parts | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Search:
        """Return a stored run, ready to continue.

        Args:
            store: The store that has the run.
            name: The full name of the run.
            parts: The parts to use; by default they are built again from the run's first event.
            callbacks: Receive every further event.

        Raises:
            SetupError: The run has no first event, or was measured on another device.
            StoreError: There is no such run, it is damaged or was not written here, or another
                process holds it.
        """
        run = store.open_run(name)
        run.check_own()  # the parts are built from what it holds, and its problem's code is run
        started = run.state.started
        if (writer := run.state.made_by) != "search":
            raise SetupError(
                f"run {name!r} is a {writer}'s: make the `{writer.title()}` again with this store"
            )
        if started is None:
            raise SetupError(f"run {name!r} never began: start a new search")
        run.hold()
        search = cls(
            started.problem,
            parts or Parts.build(started.spec.components, started.problem),
            store,
            spec=started.spec,
            name=name,
            callbacks=callbacks,
        )
        if search.parts.farm.device.id != started.device.id:
            raise SetupError(
                f"run {name!r} measured on {started.device.id}; this is "
                f"{search.parts.farm.device.id}: times do not compare, start a new search here"
            )
        search._journal.run = run
        search._measuring.adopt()
        search._close_entries()
        search._remember(started.recalled)
        search._thinking.learn_history()
        return search

    def begin(self, budget: Budget) -> None:
        """Start the run, or give a resumed one this budget.

        Raises:
            NoDevice: The farm has no device that can run the problem's kernels.
        """
        self.parts.farm.quote(self.problem)
        if self._journal.run is not None:
            if budget != self.state.budget or self.state.ended:
                self._journal.stage([events.BudgetChanged(budget=budget)])
                self._journal.commit()
            return
        self._journal.run = self.store.create_run(self.name)
        language = self.problem.language
        seed = as_kernel(self.problem.seed_source, language)
        recalled: dict[str, int] = {}
        if isinstance(self.parts.forecaster, Remembering) and not tunes(self.spec):
            recalled = recallable(self.store, self.parts.farm.device.id, language)
        started = events.RunStarted(
            spec=self.spec,
            problem=self.problem,
            device=self.parts.farm.device,
            seed_kernel_id=seed.id,
            budget=budget,
            recalled=recalled,
        )
        self._journal.stage([started], [seed])
        self._journal.commit()
        self.log.hold()
        self._remember(recalled)

    def _remember(self, recalled: Mapping[str, int]) -> None:
        if recalled and isinstance(self.parts.forecaster, Remembering):
            self.parts.forecaster.remember(past_runs(self.store, recalled))

    @property
    def log(self) -> Run:
        """The run in the store, with its events."""
        return self._journal.log

    @property
    def state(self) -> State:
        """The current state of the run."""
        return self.log.state

    @property
    def result(self) -> Result:
        """The best kernel so far that was measured twice."""
        node = self.state.incumbent
        return Result(
            run=self.name,
            kernel=self._journal.kernel(node.kernel_id),
            log2_speedup=node.log2_speedup,
            confirmed=node.confirmed,
            state=self.state,
        )

    def _close_entries(self) -> None:
        """Close the entries that a crash left open.

        A measurement costs nothing and is made again. A model's answer may have been paid for, so
        its reservation is charged and marked unknown.
        """
        closing: list[Event] = []
        for entry, spend in self.state.entries.items():
            if entry in self._measuring.jobs:
                continue
            if leased := self.state.leases.get(entry):
                closing.append(events.Voided(entry=entry, lease=leased.lease))
            elif Resource.DEVICE_S in spend:
                closing.append(events.Voided(entry=entry))
            else:
                closing.append(events.Settled(entry=entry, spend=spend, unknown=True))
        self._journal.stage(closing)
        self._journal.commit()

    # --------------------------------------------------------------------------- ask and tell

    def ask(self) -> Job | None:
        """Return the next measurement to make, reserved in the ledger; None if the run is over."""
        journal, measuring = self._journal, self._measuring

        def think_here(_: int, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
            journal.commit()
            done(work())

        while True:
            job = measuring.next_job() or measuring.next_elsewhere()
            if job is None and journal.stopped is None and self._thinking.think(1, think_here):
                continue
            journal.commit()
            if job is None and measuring.claimed:
                measuring.wait([])
            elif job is None or measuring.give_way([job]):
                return job

    def tell(
        self,
        job: Job,
        outcome: Measurement | Loss | None = None,
        *,
        seconds: float | None = None,
        failure: Failure | str | None = None,
        cost_s: float = 0.0,
    ) -> None:
        """Report what came of a job: settle, store and learn from it.

        Args:
            job: The job.
            outcome: What a farm returns for it; or state `seconds` or `failure` instead.
            seconds: The kernel's time.
            failure: Why it has none: the name of a `FailureKind`, or the message of a crash.
            cost_s: Device seconds that `seconds` or `failure` took.

        Raises:
            SetupError: There is not one of `outcome`, `seconds` and `failure`, or the problem's
                seed kernel fails.
            StaleLease: The job was lost or taken over before; nothing is recorded.
        """
        if (outcome, seconds, failure).count(None) != 2:
            raise SetupError("tell one of these: an outcome, seconds=... or failure=...")
        if outcome is None:
            outcome = self._reported(job, seconds, failure, cost_s)
        try:
            self._measuring.settle(job, outcome)
        finally:
            self._journal.commit()

    def _reported(
        self, job: Job, seconds: float | None, failure: Failure | str | None, cost_s: float
    ) -> Measurement:
        log2_speedup, reference_s = None, math.nan
        if seconds is not None:
            require_positive(seconds=seconds)
            elsewhere = self.state.elsewhere.get(job.device)
            is_here = job.device == self.parts.farm.device.id
            reference = self.state.reference if is_here else elsewhere and elsewhere.reference
            timing = reference.timing if reference else None
            # The job that comes first is the reference itself.
            reference_s = seconds if timing is None else timing.reference_runtime_s
            log2_speedup = math.log2(reference_s / seconds)
        return Measurement.reported(
            job.kernel.id,
            self.problem,
            self._measuring.farms[job.device].device,
            log2_speedup=log2_speedup,
            reference_s=reference_s,
            failure=failure,
            cost_s=cost_s,
            effort=job.effort,
        )

    def run(self, budget: Budget | None = None) -> Result:
        """Search until the budget is spent or nothing is left to try. Ctrl-C ends it cleanly.

        Args:
            budget: Caps on what to spend; by default those of the file or of the resumed run.

        Raises:
            SetupError: A part cannot work, or the problem's seed kernel fails.
            StoreError: The store cannot be written.
        """
        if budget is None:
            budget = self._budget if self._journal.run is None else self.state.budget
        self.begin(budget)
        journal, thinking, measuring = self._journal, self._thinking, self._measuring
        tasks: dict[Future[Any], Callable[[Any], None]] = {
            future: partial(measuring.settle, job) for future, job in measuring.adopted.items()
        }

        def start(concurrency: int, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
            future: Future[Any] = Future()
            tasks[future] = done
            if concurrency:
                due.append((future, work))
            else:
                _in_background(future, work, daemon=False)

        try:
            while True:
                due: list[tuple[Future[Any], Callable[[], Any]]] = []
                measuring.retract()
                slots = self.parts.farm.slots  # a shared farm's number changes
                room = slots + (slots if thinking.slow else thinking.jobs_ahead(slots))
                jobs = measuring.next_jobs(room)
                while journal.stopped is None and thinking.think(room - measuring.busy(), start):
                    jobs += measuring.next_jobs(room)
                while (job := measuring.next_elsewhere()) is not None:
                    jobs.append(job)
                journal.commit()
                for job in measuring.give_way(jobs):
                    future = measuring.farms[job.device].submit(self.problem, job)
                    tasks[future] = partial(measuring.settle, job)
                for future, work in due:
                    _in_background(future, work, daemon=True)
                if not tasks and not measuring.claimed:
                    break
                for future in measuring.wait(tasks):
                    tasks.pop(future)(future.result())
        except KeyboardInterrupt:
            journal.stopped = INTERRUPTED
        except SetupError as error:
            self._end(f"stopped: {error}")
            raise
        finally:
            self.parts.farm.close()
        trouble = f": {self.state.unanswered}" if self.state.unanswered else ""
        self._end(journal.stopped or f"nothing left to try{trouble}")
        return self.result

    def _end(self, reason: str) -> None:
        self._measuring.jobs.clear()  # the farm is closed
        self._close_entries()
        self._journal.stage([events.RunEnded(reason=reason)])
        self._journal.commit()
        self.log.release()

    def stop(self, reason: str) -> None:
        """End the search after the current measurements; a new best is still confirmed."""
        self._journal.stop(reason)


def _in_background(future: Future[Any], work: Callable[[], Any], *, daemon: bool) -> None:
    """Run work on a thread; a daemon thread does not delay the end of the process."""

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="think", daemon=daemon).start()
