"""The search loop: proposals in, decisions made, measurements out, everything an event.

The loop knows the protocols and the farm, never a concrete part. `run` is built on `ask` and
`tell`, so that another system can own the loop. There are no step barriers: whenever something
ends, everything that can start is started. Only the calling thread touches the run.

Events are applied to the state at once and written in groups: all that has happened since the last
commit is one transaction. Nothing is acknowledged, paid or submitted before its group is durable.

The file is above 600 lines because all of it works on one object, the run in progress.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kernelcast import events, scoring, types
from kernelcast.canonical import kernel_id
from kernelcast.certainty import consult
from kernelcast.doubts import Doubts, retractions
from kernelcast.errors import BudgetExceeded, SetupError
from kernelcast.events import Event, RunSpec
from kernelcast.parts import Parts, read_run
from kernelcast.protocols import Callback, Farm
from kernelcast.run import KernelClaim, Run
from kernelcast.state import Pending, SentBack, State
from kernelcast.store import DEFAULT_STORE, Store
from kernelcast.types import Budget, Job, Kernel, Loss, Measurement, Problem, Resource, Spend

INTERRUPTED = "interrupted"
_CLAIM_POLL_S = 0.5
_RENEWAL_S = 15.0  # between two renewals of the claims of jobs that wait for a slot
_AHEAD_PER_RESULT = 4.0  # jobs that wait in front of the slots, for each result in one turn
_MOST_AHEAD = 2  # jobs that wait for each slot
_TURNS = 5.0  # over which the number of results in a turn is averaged
_POOL_PER_SLOT = 2  # open candidates at the least, if there are several slots
_POISON = 2  # workers that a kernel may end before it is quarantined
_FRUITLESS_LIMIT = 30  # requests in a row without a new kernel, after which proposals are exhausted

# `_Start` starts work of a part with some concurrency, and passes its result to a function.
_Answer = tuple[list[types.Evidence], list[types.Forecast]]
_Start = Callable[[int, Callable[[], Any], Callable[[Any], None]], None]


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
        self._run: Run | None = None
        self._budget = Budget()
        self._jobs: dict[str, Job] = {}
        self._adopted: dict[Future[Measurement | Loss], Job] = {}
        self._claimed: dict[str, float] = {}  # kernels that other runs measure: when to look again
        self._renewed_s = time.monotonic()
        self._forecasting: set[str] = set()
        self._repairing: set[str] = set()
        self._awaited_proposals = 0
        self._requests = 0
        self._exhausted = False
        self._stop: str | None = None
        self._lessons: list[types.Observation] = []
        self._learnt = 0
        self._fresh: dict[str, types.Forecast] = {}
        self._fresh_at = -1
        self._undecided = False
        self._results = 0
        self._results_per_turn = 0.0
        self._anchor_evidence: dict[str, types.Evidence] = {}
        self._farms = {farm.device.id: farm for farm in (parts.farm, *parts.farm.others)}
        self._doubts = Doubts(list(self._farms.values()), self._seed)

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
            Parts.build(file.spec.components, file.problem.language),
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
            StoreError: There is no such run, it is damaged, or another process holds it.
        """
        run = store.open_run(name)
        started = run.state.started
        if started is None:
            raise SetupError(f"run {name!r} never began: start a new search")
        run.hold()
        search = cls(
            started.problem,
            parts or Parts.build(started.spec.components, started.problem.language),
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
        search._run = run
        search._adopt_jobs()
        search._close_entries()
        search._learn_history()
        return search

    def begin(self, budget: Budget) -> None:
        """Start the run, or give a resumed one this budget.

        Raises:
            NoDevice: The farm has no device that can run the problem's kernels.
        """
        self.parts.farm.quote(self.problem)
        if self._run is not None:
            if budget != self.state.budget or self.state.ended:
                self._stage([events.BudgetChanged(budget=budget)])
                self._commit()
            return
        self._run = self.store.create_run(self.name)
        source, language = self.problem.seed_source, self.problem.language
        seed = Kernel(id=kernel_id(source, language), language=language, source=source)
        started = events.RunStarted(
            spec=self.spec,
            problem=self.problem,
            device=self.parts.farm.device,
            seed_kernel_id=seed.id,
            budget=budget,
        )
        self._stage([started], [seed])
        self._commit()
        self.log.hold()

    @property
    def log(self) -> Run:
        """The run in the store, with its events."""
        if self._run is None:
            raise SetupError("the search has not begun: call begin(budget) or run(budget)")
        return self._run

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
            kernel=self._kernel(node.kernel_id),
            log2_speedup=node.log2_speedup,
            confirmed=node.confirmed,
            state=self.state,
        )

    def _kernel(self, key: str) -> Kernel:
        return self.log.kernel(key)

    def _stage(self, batch: Sequence[Event], kernels: Sequence[Kernel] = ()) -> None:
        self.log.stage(batch, kernels)

    def _commit(self) -> None:
        """Write what has happened since the last commit, then tell the callbacks."""
        for event in self.log.commit():
            for callback in self.callbacks:
                callback.on_event(event)

    def _adopt_jobs(self) -> None:
        """Take over the jobs that outlived the process that submitted them, by new leases."""
        adopted = [
            (farm, *job)
            for farm in self._farms.values()
            for job in farm.adopt(self.log.key).items()
        ]
        for farm, entry, future in adopted:
            leased = self.state.leases.get(entry)
            if leased is None:
                farm.cancel(entry)
                continue
            leased = leased.model_copy(update={"lease": leased.lease + 1})
            self._stage([leased])
            self._adopted[future] = self._job(leased)
        self._commit()

    def _close_entries(self) -> None:
        """Close the entries that a crash left open.

        A measurement costs nothing and is made again. A model's answer may have been paid for, so
        its reservation is charged and marked unknown.
        """
        closing: list[Event] = []
        for entry, spend in self.state.entries.items():
            if entry in self._jobs:
                continue
            if leased := self.state.leases.get(entry):
                closing.append(events.Voided(entry=entry, lease=leased.lease))
            elif Resource.DEVICE_S in spend:
                closing.append(events.Voided(entry=entry))
            else:
                closing.append(events.Settled(entry=entry, spend=spend, unknown=True))
        self._stage(closing)
        self._commit()

    def _learn_history(self) -> None:
        """Teach the forecaster every measurement of the run again, as it was at that time."""
        state = State()
        here = self.parts.farm.device.id
        observations = []
        for event in self.log.events():
            if isinstance(event, events.Measured) and event.purpose != "reference":
                kernel = self._kernel(event.measurement.kernel_id)
                if event.measurement.device_id == here:
                    observations.append(_observation(kernel, event, state))
            state.apply(event)
        if observations:
            self.parts.forecaster.learn(observations)
        self._learnt = len(observations)

    # --------------------------------------------------------------------------- ask and tell

    def ask(self) -> Job | None:
        """Return the next measurement to make, reserved in the ledger; None if the run is over."""
        while True:
            job = self._next_job() or self._next_elsewhere()
            if job is None and self._stop is None and self._think(1, self._think_here):
                continue
            self._commit()
            if job is None and self._claimed:
                time.sleep(_CLAIM_POLL_S)
            elif job is None or self._give_way([job]):
                return job

    def tell(self, job: Job, outcome: Measurement | Loss) -> None:
        """Report a job's measurement or its loss: settle, store and learn from it.

        Raises:
            SetupError: The problem's seed kernel fails.
            StaleLease: The job was lost or taken over before; nothing is recorded.
        """
        try:
            self._settle_job(job, outcome)
        finally:
            self._commit()

    def _settle_job(self, job: Job, outcome: Measurement | Loss) -> None:
        self._results += 1
        promised = self.state.entries.get(job.entry, {})
        if isinstance(outcome, Loss):
            # It made no measurement, but it may have used all the seconds that it could.
            spend = {Resource.DEVICE_S: promised.get(Resource.DEVICE_S, 0.0)}
            settled = events.Settled(entry=job.entry, spend=spend, unknown=True, lease=job.lease)
            lost = events.Lost(
                entry=job.entry,
                kernel_id=job.kernel.id,
                attempt=job.attempt,
                reason=outcome.reason,
                suspect=outcome.suspect,
            )
            self._stage([settled, lost])
            del self._jobs[job.entry]
            if self.state.suspects[job.kernel.id] >= _POISON:
                self._quarantine(job, outcome)
            return
        spend = {
            resource: outcome.device_s if resource is Resource.DEVICE_S else amount
            for resource, amount in promised.items()
        }
        settled = events.Settled(entry=job.entry, spend=spend, lease=job.lease)
        self._record(job.kernel, outcome, job.purpose, [settled])
        del self._jobs[job.entry]
        self._check_seed(job, outcome)

    def _quarantine(self, job: Job, loss: Loss) -> None:
        """Record a kernel that ended several workers as one that crashes."""
        reason = f"it ended {_POISON} workers, at last so: {loss.reason}"
        farm = self._farms[job.device]
        measurement = Measurement(
            kernel_id=job.kernel.id,
            problem_id=self.problem.id,
            device_id=farm.device.id,
            toolchain=farm.toolchain,
            failure=types.Failure(kind=types.FailureKind.CRASH, message=reason),
            device_s=0.0,
            effort=job.effort,
        )
        quarantined = events.Quarantined(kernel_id=job.kernel.id, reason=reason)
        self._record(job.kernel, measurement, job.purpose, [quarantined])
        self._check_seed(job, measurement)

    def _check_seed(self, job: Job, measurement: Measurement) -> None:
        if job.purpose == "reference" and measurement.failure is not None:
            raise SetupError(
                f"the seed kernel of problem {self.problem.name!r} fails on {job.device} "
                f"({measurement.failure.kind}): {measurement.failure.message}"
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
            budget = self._budget if self._run is None else self.state.budget
        self.begin(budget)
        tasks: dict[Future[Any], Callable[[Any], None]] = {
            future: partial(self._settle_job, job) for future, job in self._adopted.items()
        }
        slow = self.parts.proposer.concurrency or self.parts.forecaster.concurrency

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
                if doubted := self._doubts.collect(self.state):
                    self._commit()
                    self._stage(retractions(self.log, doubted))
                slots = self.parts.farm.slots  # a shared farm's number changes
                room = slots + (slots if slow else self._jobs_ahead(slots))
                jobs = self._next_jobs(room)
                while self._stop is None and self._think(room - self._busy(), start):
                    jobs += self._next_jobs(room)
                while (job := self._next_elsewhere()) is not None:
                    jobs.append(job)
                self._commit()
                for job in self._give_way(jobs):
                    future = self._farms[job.device].submit(self.problem, job)
                    tasks[future] = partial(self._settle_job, job)
                for future, work in due:
                    _in_background(future, work, daemon=True)
                if not tasks and not self._claimed:
                    break
                pause_s = _CLAIM_POLL_S if self._claimed else _RENEWAL_S
                if not tasks:
                    time.sleep(_CLAIM_POLL_S)
                self._renew_claims()
                finished, _ = wait(tasks, pause_s, return_when=FIRST_COMPLETED)
                for future in finished:
                    tasks.pop(future)(future.result())
        except KeyboardInterrupt:
            self._stop = INTERRUPTED
        except SetupError as error:
            self._end(f"stopped: {error}")
            raise
        finally:
            self.parts.farm.close()
        trouble = f": {self.state.unanswered}" if self.state.unanswered else ""
        self._end(self._stop or f"nothing left to try{trouble}")
        return self.result

    def _end(self, reason: str) -> None:
        self._jobs.clear()  # the farm is closed
        self._close_entries()
        self._stage([events.RunEnded(reason=reason)])
        self._commit()
        self.log.release()

    def stop(self, reason: str) -> None:
        """End the search after the current measurements; a new best is still confirmed."""
        self._stop = self._stop or reason

    def _jobs_ahead(self, slots: int) -> int:
        """Return how many jobs end while the loop chooses the next ones; 0 if it keeps up.

        With one slot it is always 0, so that a run can be repeated exactly.
        """
        more = max(0.0, self._results_per_turn - 1.0)
        return min(_MOST_AHEAD * slots, int(_AHEAD_PER_RESULT * more)) if slots > 1 else 0

    def _busy(self) -> int:
        """Return the number of kernels that are measured or wait for it."""
        waiting = set(self.state.pending) - set(self._claimed)
        return len(self._measuring(self.parts.farm.device.id) | waiting)

    def _measuring(self, device: str) -> set[str]:
        """Return the kernels whose jobs are under way on a device."""
        return {job.kernel.id for job in self._jobs.values() if job.device == device}

    def _think_here(
        self, _concurrency: int, work: Callable[[], Any], done: Callable[[Any], None]
    ) -> None:
        self._commit()
        done(work())

    # ------------------------------------------------------------------------------ measuring

    def _next_jobs(self, room: int) -> list[Job]:
        """Reserve measurements while there is room for them."""
        jobs: list[Job] = []
        under_way = sum(job.device == self.parts.farm.device.id for job in self._jobs.values())
        while under_way + len(jobs) < room and (job := self._next_job()) is not None:
            jobs.append(job)
        return jobs

    def _next_job(self) -> Job | None:
        state = self.state
        running = self._measuring(self.parts.farm.device.id)
        if state.reference is None:
            return None if running else self._reserve_job("reference", self._seed_kernel_id)
        for key in state.unconfirmed:
            overtaken = state.archive[key].log2_speedup <= state.incumbent.log2_speedup
            if key not in running and not overtaken:
                return self._reserve_job("confirmation", key)
        if self._stop is not None:
            return None
        if (repeated := self._doubts.repeat(running)) is not None:
            return self._reserve_job("confirmation", repeated)
        for key in list(state.pending):
            if key not in running and not self._recall(key):
                return self._reserve_job("search", key)
        return None

    def _next_elsewhere(self) -> Job | None:
        """Reserve a measurement on another device that has a free slot."""
        for farm in self.parts.farm.others:
            running = self._measuring(farm.device.id)
            other = self.state.elsewhere.get(farm.device.id)
            if len(running) >= farm.slots:
                continue
            if other is None or other.reference is None:
                if not running:
                    return self._reserve_job("reference", self._seed_kernel_id, farm)
                continue
            for key, log2_speedup in other.unconfirmed.items():
                if key not in running and log2_speedup > other.best_log2:
                    return self._reserve_job("confirmation", key, farm)
            waiting = [key for key in other.waiting if key not in running]
            if waiting and self._stop is None:
                fastest = max(waiting, key=other.waiting.__getitem__)
                return self._reserve_job("search", fastest, farm)
        return None

    @property
    def _seed_kernel_id(self) -> str:
        assert self.state.started is not None
        return self.state.started.seed_kernel_id

    def _reserve_job(
        self, purpose: types.Purpose, key: str, farm: Farm | None = None
    ) -> Job | None:
        farm = farm or self.parts.farm
        # Reference and confirmations do not count as measurements.
        spend: dict[Resource, float] = {
            resource: cost
            for resource, cost in farm.quote(self.problem).items()
            if purpose == "search" or resource != Resource.MEASUREMENTS
        }
        entry = self._reserve(purpose, spend)
        if entry is None:
            return None
        leased = events.Leased(
            entry=entry,
            lease=1,
            attempt=self.state.losses.get(key, 0) + 1,
            purpose=purpose,
            kernel_id=key,
            device=farm.device.id,
        )
        claims = []
        if purpose == "search" and self.spec.reuse and farm is self.parts.farm:
            claims.append(KernelClaim(self._cache_key(key), entry, self._claim_s()))
        self.log.stage([leased], claims=claims)
        return self._job(leased)

    def _claim_s(self) -> float:
        """Return the seconds for which a claim holds unless it is renewed."""
        return 2.0 * self.parts.farm.quote(self.problem).get(Resource.DEVICE_S, 0.0) + 60.0

    def _renew_claims(self) -> None:
        """Keep other runs from measuring what this one has queued: a slot may come late."""
        now_s = time.monotonic()
        if self.spec.reuse and self._jobs and now_s - self._renewed_s >= _RENEWAL_S:
            self._renewed_s = now_s
            self.log.renew_claims(self._claim_s())

    def _job(self, leased: events.Leased) -> Job:
        job = Job(
            entry=leased.entry,
            purpose=leased.purpose,
            kernel=self._kernel(leased.kernel_id),
            seed=self._seed(leased.entry),
            run=self.log.key,
            attempt=leased.attempt,
            lease=leased.lease,
            device=leased.device,
            avoid=self._doubts.node_of(leased.kernel_id),
        )
        self._jobs[job.entry] = job
        return job

    def _recall(self, key: str) -> bool:
        """Use another run's measurement of this kernel, or wait for it; it costs nothing."""
        if not self.spec.reuse:
            return False
        if time.monotonic() < self._claimed.get(key, 0.0):
            return True
        cache_key = self._cache_key(key)
        known = self.store.cached_measurement(cache_key)
        if known is not None:
            self._claimed.pop(key, None)
            self._record(self._kernel(key), known, "search", [], cached=True)
            return True
        if self.log.is_claimed(cache_key):
            self._claimed[key] = time.monotonic() + _CLAIM_POLL_S
            return True
        self._claimed.pop(key, None)
        return False

    def _cache_key(self, key: str) -> types.CacheKey:
        farm = self.parts.farm
        return types.CacheKey(
            kernel_id=key,
            problem_id=self.problem.id,
            device_id=farm.device.id,
            toolchain=farm.toolchain,
            protocol=types.TIMING_PROTOCOL,
            effort="screening",
        )

    def _give_way(self, jobs: Sequence[Job]) -> list[Job]:
        """Withdraw the jobs whose kernels other runs began to measure first; return the others."""
        contested = self.log.contested
        for job in [job for job in jobs if job.entry in contested]:
            self._stage([events.Voided(entry=job.entry, lease=job.lease)])
            self._claimed[job.kernel.id] = time.monotonic() + _CLAIM_POLL_S
            del self._jobs[job.entry]
        self._commit()
        return [job for job in jobs if job.entry not in contested]

    def _record(
        self,
        kernel: Kernel,
        measurement: Measurement,
        purpose: Any,
        before: list[Event],
        *,
        cached: bool = False,
    ) -> None:
        """Record a measurement after the events `before`, and learn from it."""
        event = events.Measured(measurement=measurement, purpose=purpose, cached=cached)
        if measurement.device_id != self.parts.farm.device.id:
            self._stage([*before, event])
            return
        if not cached:
            self._doubts.compare(measurement, purpose, self.state.incumbent.log2_speedup)
        pending = _pending(event, self.state)
        if pending is not None:
            calibration = scoring.judge(
                pending.candidate.forecast, measurement, blind=pending.audit
            )
            event = event.model_copy(update={"calibration": calibration})
        observation = _observation(kernel, event, self.state)
        self._stage([*before, event])
        if purpose != "reference":
            # A confirmation too: the first measurement may have been too high by chance.
            self._lessons.append(observation)
            self._teach()
        if self.state.hopeless is not None:
            self.stop(f"stopped: the first {self.state.measured} measurements failed alike")
        if self.state.left(Resource.MEASUREMENTS) < 1:
            self.stop("budget spent: all measurements made")

    def _teach(self) -> None:
        """Pass new measurements to the forecaster, but not while a quick one forecasts."""
        if self._lessons and not (self._forecasting and not self.parts.forecaster.concurrency):
            self.parts.forecaster.learn(self._lessons)
            self._learnt += len(self._lessons)
            self._lessons = []

    # ------------------------------------------------------------------------------- thinking

    def _think(self, free_slots: int, start: _Start) -> bool:
        """Propose, forecast or decide; return False if nothing could be started."""
        slow = self.parts.proposer.concurrency or self.parts.forecaster.concurrency
        # Quick parts work only when a slot is free, because they know the most then.
        if self.state.reference is None or (free_slots < 1 and not slow):
            return False
        return self._propose(start) or self._forecast(start) or self._decide(free_slots)

    def _propose(self, start: _Start) -> bool:
        proposer, state = self.parts.proposer, self.state
        # A pool that is smaller than the farm would leave slots idle.
        pool_size = max(self.parts.policy.pool_size, _POOL_PER_SLOT * (self.parts.farm.slots - 1))
        wanted = pool_size - len(state.open) - self._awaited_proposals
        if state.budget.candidates is not None:
            left = state.budget.candidates - state.considered - self._awaited_proposals
            wanted = min(wanted, left)
        busy = self._awaited_proposals >= max(1, proposer.concurrency)
        if self._is_exhausted() or wanted < 1 or busy:
            return False
        # A slow proposer is asked for one kernel at a time, so that each is used when it is ready.
        count = 1 if proposer.concurrency else wanted
        # The state does not know the requests that are still being answered.
        ordinal = max(state.requests, self._requests)
        self._requests = ordinal + 1
        seed = self._seed(f"proposal {ordinal}")
        repair, sent_back = None, self._sent_back()
        if sent_back is not None:
            count, chosen = 1, [sent_back.parent_id]
            self._repairing.add(sent_back.kernel_id)
            broken = self._kernel(sent_back.kernel_id)
            repair = types.Repair(kernel=broken, complaint=sent_back.complaint)
        else:
            archive = list(state.archive.values())
            chosen = self.parts.strategy.select(archive, 2, seed, stale=state.stale)
        parent, *others = (state.archive[key] for key in chosen)
        request = types.ProposalRequest(
            ordinal=ordinal,
            problem=self.problem,
            device=self.parts.farm.device,
            parent=self._kernel(parent.kernel_id),
            parent_log2_speedup=parent.log2_speedup,
            parent_runtime_s=self._runtime_s(parent.log2_speedup),
            parent_measured=parent.origin != "forecast",
            count=count,
            seed=seed,
            proposed=state.expansions,
            fruitless=state.fruitless,
            partner=self._kernel(others[0].kernel_id) if others else None,
            partner_log2_speedup=others[0].log2_speedup if others else 0.0,
            history=state.history(parent.kernel_id),
            repair=repair,
        )
        quote = proposer.quote(request)
        entry = self._pay("proposal", quote, proposer.concurrency)
        if self._stop is not None:
            return False
        self._awaited_proposals += count

        def done(proposals: types.Proposals) -> None:
            self._awaited_proposals -= count
            self._admit(request, entry, proposals)

        if proposer.concurrency:
            start(proposer.concurrency, lambda: proposer.propose(request), done)
        else:
            done(proposer.propose(request))
        return True

    def _sent_back(self) -> SentBack | None:
        """Return the latest candidate that its proposer can repair."""
        if not self.parts.proposer.repairs:
            return None
        waiting = (
            entry
            for entry in reversed(self.state.sent_back)
            if entry.kernel_id not in self._repairing and entry.parent_id in self.state.archive
        )
        return next(waiting, None)

    def _admit(
        self, request: types.ProposalRequest, entry: str | None, answer: types.Proposals
    ) -> None:
        """Record the proposed kernels and mark the duplicates."""
        new = {kernel.id: kernel for kernel in answer.kernels}
        assert self.state.started is not None
        seen = self.log.seen(new) | {self.state.started.seed_kernel_id}
        repairs = request.repair and request.repair.kernel.id
        batch = _settle(entry, answer.usage, Resource.PROPOSAL_TOKENS, Resource.PROPOSAL_USD)
        if answer.failure or answer.missed or not (new or answer.exhausted):
            batch.append(
                events.Unanswered(
                    parent_id=request.parent.id,
                    request=request.ordinal,
                    missed=answer.missed,
                    reason=answer.failure,
                    repairs=repairs,
                )
            )
        batch += [
            events.Proposed(
                kernel_id=key,
                parent_id=request.parent.id,
                proposer=self.parts.proposer.name,
                request=request.ordinal,
                duplicate=key in seen,
                claim=answer.claims.get(key, types.Claim()),
                repairs=repairs,
            )
            for key in new
        ]
        if batch:
            self._stage(batch, [kernel for key, kernel in new.items() if key not in seen])
        self._exhausted |= answer.exhausted

    def _is_exhausted(self) -> bool:
        """Return True if no more candidates come."""
        state, most = self.state, self.state.budget.candidates
        enough = most is not None and state.considered >= most
        return self._exhausted or enough or state.fruitless >= _FRUITLESS_LIMIT

    def _forecast(self, start: _Start) -> bool:
        forecaster = self.parts.forecaster
        if self._forecasting and not forecaster.concurrency:
            return False
        # Forecasts are refreshed at most once a decision.
        if forecaster.refreshes and self._fresh_at < self._learnt and not self._undecided:
            self._fresh, self._fresh_at = {}, self._learnt
        known = self._forecasting | set(self._fresh)
        wanted = [
            candidate
            for key, candidate in self.state.open.items()
            if key not in known and candidate.forecast is None
        ]
        if forecaster.concurrency:
            # One candidate per call, so that each forecast is used when it is ready.
            wanted = wanted[:1] if len(self._forecasting) < forecaster.concurrency else []
        if not wanted:
            return False
        keys = [candidate.kernel_id for candidate in wanted]
        # One read for all: reading them one by one takes longer than the forecasts.
        kernels = self.log.kernels(keys)
        queries = [self._query(*pair) for pair in zip(wanted, kernels, strict=True)]
        quote = forecaster.quote(queries)
        entry = self._pay("forecast", quote, forecaster.concurrency)
        if self._stop is not None:
            return False
        self._forecasting.update(keys)

        def work() -> _Answer:
            informed = self._inspect(queries) if self.spec.inspect else queries
            evidence = [query.evidence for query in informed if query.evidence is not None]
            return evidence, consult(forecaster, informed)

        def done(answer: _Answer) -> None:
            self._forecasting.difference_update(keys)
            self._take_forecasts(keys, entry, answer)
            self._teach()

        start(forecaster.concurrency, work, done)
        return True

    def _inspect(self, queries: Sequence[types.Query]) -> list[types.Query]:
        """Return the queries with the evidence of both kernels; an anchor is compiled once."""
        farm, anchors = self.parts.farm, self._anchor_evidence
        unknown = {
            kernel.id: kernel
            for query in queries
            for kernel, evidence in (
                (query.candidate, query.evidence),
                (query.anchor, anchors.get(query.anchor.id)),
            )
            if evidence is None
        }
        futures = {key: farm.inspect(self.problem, kernel) for key, kernel in unknown.items()}
        compiled = {key: future.result() for key, future in futures.items()}
        anchors |= {q.anchor.id: compiled[q.anchor.id] for q in queries if q.anchor.id in compiled}
        return [
            query.model_copy(
                update={
                    "evidence": query.evidence or compiled[query.candidate.id],
                    "anchor_evidence": anchors[query.anchor.id],
                }
            )
            for query in queries
        ]

    def _query(self, candidate: types.Candidate, kernel: Kernel) -> types.Query:
        anchor = self.state.anchor(candidate.parent_id)
        return types.Query(
            problem=self.problem,
            device=self.parts.farm.device,
            candidate=kernel,
            anchor=self._kernel(anchor.kernel_id),
            anchor_log2_speedup=anchor.log2_speedup,
            anchor_runtime_s=self._runtime_s(anchor.log2_speedup),
            evidence=candidate.evidence,
            incumbent_log2=self.state.incumbent.log2_speedup,
            claim=candidate.claim,
        )

    def _take_forecasts(self, keys: list[str], entry: str | None, answer: _Answer) -> None:
        evidence, forecasts = answer
        usage = types.Usage.total(forecast.usage for forecast in forecasts)
        batch = _settle(entry, usage, Resource.FORECAST_TOKENS, Resource.FORECAST_USD)
        answers = dict(zip(keys, forecasts, strict=True))
        for compiled in evidence:
            key = compiled.kernel_id
            if self.state.open[key].evidence is None:
                batch.append(events.Inspected(kernel_id=key, evidence=compiled))
            if compiled.failure is not None:
                decision = types.Decision(action="drop", score=0.0, reason="does not compile")
                batch.append(events.Decided(kernel_id=key, decision=decision))
                del answers[key]
        if self.parts.forecaster.refreshes:
            # Only the forecast that is decided upon becomes an event: the others are soon replaced.
            self._fresh |= answers
            self._undecided = True
        else:
            batch += [events.Forecasted(kernel_id=key, forecast=answers[key]) for key in answers]
        if batch:
            self._stage(batch)

    def _decide(self, free_slots: int) -> bool:
        state = self.state
        refreshing = self.parts.forecaster.refreshes and bool(self._forecasting)
        if free_slots < 1 or (refreshing and not self.parts.forecaster.concurrency):
            return False
        self._undecided = False
        self._results_per_turn += (self._results - self._results_per_turn) / _TURNS
        self._results = 0
        view = types.View(
            seed=self.spec.seed,
            incumbent_log2=state.incumbent.log2_speedup,
            noise_log2=state.noise_log2,
            measured=state.measured,
            free_slots=free_slots,
            measurements_left=state.left(Resource.MEASUREMENTS),
            proposals_exhausted=self._is_exhausted() and not self._awaited_proposals,
            stale=state.stale,
            considered=state.considered,
            audits=tuple(state.audits),
        )
        pool = []
        for key, candidate in state.open.items():
            forecast = self._fresh.get(key, candidate.forecast)
            if forecast is not None:
                pool.append(candidate.model_copy(update={"forecast": forecast}))
        decisions = self.parts.policy.decide(pool, view)
        if not decisions:
            return False
        batch: list[Event] = []
        for candidate in pool:
            key, forecast = candidate.kernel_id, candidate.forecast
            decision = decisions.get(key)
            if decision is None:
                continue
            if key in self._fresh:
                batch.append(events.Forecasted(kernel_id=key, forecast=self._fresh.pop(key)))
            median = None
            if decision.action == "trust" and forecast is not None:
                median = forecast.against_reference().quantile(0.5)
            batch.append(events.Decided(kernel_id=key, decision=decision, log2_speedup=median))
        self._stage(batch)
        return True

    # -------------------------------------------------------------------------------- helpers

    def _pay(self, purpose: str, quote: Spend, concurrency: int) -> str | None:
        """Reserve the quote of some thinking, durably if the thinking starts at once."""
        entry = self._reserve(purpose, quote) if quote else None
        if entry is not None and not concurrency:
            self._commit()
        return entry

    def _reserve(self, purpose: str, spend: Spend) -> str | None:
        """Return the entry of a new reservation; stop the run if it would exceed the budget."""
        entry = f"{purpose}-{self.state.attempts}"
        try:
            self._stage([events.Reserved(entry=entry, spend=spend)])
        except BudgetExceeded as error:
            self._stop = f"budget spent: {error}"
            return None
        return entry

    def _runtime_s(self, log2_speedup: float) -> float:
        """Return the seconds per call at this speedup, from the reference's measured time."""
        reference = self.state.reference
        assert reference is not None
        assert reference.timing is not None
        return reference.timing.reference_runtime_s / float(2.0**log2_speedup)

    def _seed(self, purpose: str) -> int:
        """Return a seed that depends only on the run's seed and the purpose."""
        return int(types.content_hash(f"{self.spec.seed} {purpose}")[:15], 16)


def _pending(event: events.Measured, state: State) -> Pending | None:
    """Return the candidate that this event measures, if the search chose it."""
    key = event.measurement.kernel_id
    return state.pending.get(key) if event.purpose == "search" else None


def _observation(kernel: Kernel, event: events.Measured, state: State) -> types.Observation:
    """Return what a forecaster learns from an event that follows this state."""
    pending = _pending(event, state)
    if pending is None:
        return types.Observation(kernel=kernel, measurement=event.measurement)
    return types.Observation(
        kernel=kernel,
        measurement=event.measurement,
        evidence=pending.candidate.evidence,
        forecast=pending.candidate.forecast,
        chosen=pending.chosen,
    )


def _in_background(future: Future[Any], work: Callable[[], Any], *, daemon: bool) -> None:
    """Run work on a thread; a daemon thread does not delay the end of the process."""

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="think", daemon=daemon).start()


def _settle(entry: str | None, usage: types.Usage, tokens: Resource, usd: Resource) -> list[Event]:
    if entry is None:
        return []
    spend = {tokens: usage.tokens, usd: usage.usd}
    return [events.Settled(entry=entry, spend=spend, unknown=usage.unknown)]
