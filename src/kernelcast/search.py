"""The one loop: proposals in, decisions made, measurements out, everything an event.

It knows the protocols and the farm, never a concrete part. `ask` and `tell` lie beneath `run`, so
that another system can own the loop. There are no step barriers: whatever can be started is
started whenever anything ends, and only this thread touches the run.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernelcast import scoring
from kernelcast.canonical import kernel_id
from kernelcast.certainty import consult
from kernelcast.errors import BudgetExceeded, SetupError
from kernelcast.events import (
    BudgetChanged,
    Decided,
    Event,
    Forecasted,
    Inspected,
    Measured,
    Proposed,
    Reserved,
    RunEnded,
    RunSpec,
    RunStarted,
    Settled,
    Unanswered,
    Voided,
)
from kernelcast.parts import Parts, RunFile
from kernelcast.protocols import Callback
from kernelcast.state import Pending, SentBack, State
from kernelcast.store import DEFAULT_STORE, Run, Store
from kernelcast.types import (
    Budget,
    Candidate,
    Claim,
    Decision,
    Evidence,
    Forecast,
    Job,
    Kernel,
    Measurement,
    Observation,
    Problem,
    ProposalRequest,
    Proposals,
    Query,
    Repair,
    Resource,
    Spend,
    Usage,
    View,
    content_hash,
)

INTERRUPTED = "interrupted"
_FRUITLESS_LIMIT = 30  # requests in a row that brought nothing new before proposals count as spent


@dataclass(frozen=True)
class Result:
    """What a run found. Only measured kernels are results; `confirmed` was measured twice."""

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
    """One search over one problem. `run(budget)` does it all; `ask`/`tell` do it step by step."""

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
        self._thinking: set[str] = set()
        self._repairing: set[str] = set()
        self._asking = 0
        self._requests = 0
        self._exhausted = False
        self._stop: str | None = None
        self._learnt = 0
        self._fresh: dict[str, Forecast] = {}
        self._fresh_at = -1
        self._anchor_evidence: dict[str, Evidence] = {}
        self._kernel = lru_cache(maxsize=4_096)(store.kernel)

    # ------------------------------------------------------------------------- life of a run

    @classmethod
    def from_toml(cls, path: str | Path, callbacks: Sequence[Callback] = ()) -> Search:
        """A search as a file states it (`parts.RunFile`).

        Its budget is that of the file, unless `run` is given another.
        """
        stated = RunFile.read(path)
        search = cls(
            stated.problem,
            Parts.build(stated.spec.components, stated.problem.language),
            Store.open(stated.store or DEFAULT_STORE),
            spec=stated.spec,
            name=stated.name,
            callbacks=callbacks,
        )
        search._budget = stated.budget
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
        """A stored run, ready to go on; its parts are built again from its own first event."""
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
        search._abandon_unfinished()
        search._learn_history()
        return search

    def begin(self, budget: Budget) -> None:
        """Start the run, or give a resumed one this budget.

        Raises:
            NoDevice: The farm has no device that could run the problem's kernels.
        """
        self.parts.farm.quote(self.problem)
        if self._run is not None:
            if budget != self.state.budget or self.state.ended:
                self._append([BudgetChanged(budget=budget)])
            return
        self._run = self.store.create_run(self.name)
        seed = Kernel(
            id=kernel_id(self.problem.seed_source, self.problem.language),
            language=self.problem.language,
            source=self.problem.seed_source,
        )
        started = RunStarted(
            spec=self.spec,
            problem=self.problem,
            device=self.parts.farm.device,
            seed_kernel_id=seed.id,
            budget=budget,
        )
        self._append([started], [seed])
        self._log.hold()

    @property
    def state(self) -> State:
        """Where the run stands."""
        return self._log.state

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

    @property
    def log(self) -> Run:
        """The run in the store, with its events."""
        return self._log

    @property
    def _log(self) -> Run:
        if self._run is None:
            raise SetupError("the search has not begun: call begin(budget) or run(budget)")
        return self._run

    @property
    def _started(self) -> RunStarted:
        assert self.state.started is not None
        return self.state.started

    def _append(self, events: Sequence[Event], kernels: Sequence[Kernel] = ()) -> None:
        self._log.append(events, kernels)
        for event in events:
            for callback in self.callbacks:
                callback.on_event(event)

    def _abandon_unfinished(self) -> None:
        """Close what a crash left open: measurements cost nothing and are made again; an answer of
        a model may have been paid for, so it is charged at its reservation and marked unknown.
        """
        closing: list[Event] = []
        for entry, spend in self.state.entries.items():
            if Resource.DEVICE_S in spend:
                closing.append(Voided(entry=entry))
            else:
                closing.append(Settled(entry=entry, spend=spend, unknown=True))
        if closing:
            self._append(closing)

    def _learn_history(self) -> None:
        """Teach the forecaster what it was taught before, each lesson as it was then."""
        evidence: dict[str, Evidence] = {}
        forecasts: dict[str, Forecast] = {}
        chosen: dict[str, float] = {}
        observations = []
        for event in self._log.events("inspected", "forecasted", "decided", "measured"):
            match event:
                case Inspected():
                    evidence[event.kernel_id] = event.evidence
                case Forecasted():
                    forecasts[event.kernel_id] = event.forecast
                case Decided(decision=Decision(action="audit")):
                    chosen[event.kernel_id] = event.decision.score
                case Decided(decision=Decision(action="drop")):
                    evidence.pop(event.kernel_id, None)
                    forecasts.pop(event.kernel_id, None)
                case Measured() if event.purpose != "reference":
                    key = event.measurement.kernel_id
                    observations.append(
                        Observation(
                            kernel=self._kernel(key),
                            measurement=event.measurement,
                            evidence=evidence.pop(key, None),
                            forecast=forecasts.pop(key, None),
                            chosen=chosen.pop(key, 1.0),
                        )
                    )
        if observations:
            self.parts.forecaster.learn(observations)
        self._learnt = len(observations)

    # --------------------------------------------------------------------------- ask and tell

    def ask(self) -> Job | None:
        """The next measurement to make, paid for in the ledger; None when the run is over."""
        while True:
            job = self._next_job()
            if job is not None:
                return job
            if self._stop is not None or not self._think(free_slots=1, start=self._inline):
                return None

    def tell(self, job: Job, measurement: Measurement) -> None:
        """Report a job's measurement: it is settled, stored, folded and learnt from."""
        del self._jobs[job.entry]
        spend = {
            resource: measurement.device_s if resource is Resource.DEVICE_S else amount
            for resource, amount in self.state.entries[job.entry].items()
        }
        self._record(job.purpose, job.kernel, measurement, [Settled(entry=job.entry, spend=spend)])
        if job.purpose == "reference" and measurement.failure is not None:
            raise SetupError(
                f"the seed kernel of problem {self.problem.name!r} fails "
                f"({measurement.failure.kind}): {measurement.failure.message}"
            )

    def run(self, budget: Budget | None = None) -> Result:
        """Search until the budget is spent or nothing is left to try. Ctrl-C ends it cleanly."""
        self.begin(budget if budget is not None else self._budget_so_far())
        tasks: dict[Future[Any], Callable[[Any], None]] = {}
        slow = max(self.parts.proposer.concurrency, self.parts.forecaster.concurrency)
        # Where thinking is slow, one decided job a slot waits in front of the device.
        ahead = self.parts.farm.slots if slow else 0

        def start(concurrency: int, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
            if concurrency == 0:
                done(work())
            else:
                tasks[_in_background(work)] = done

        try:
            while True:
                self._dispatch(tasks)
                busy = {job.kernel.id for job in self._jobs.values()} | set(self.state.pending)
                free_slots = self.parts.farm.slots + ahead - len(busy)
                if self._stop is None and self._think(free_slots=free_slots, start=start):
                    continue
                if not tasks:
                    break
                finished, _ = wait(tasks, return_when=FIRST_COMPLETED)
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
        self._abandon_unfinished()
        self._append([RunEnded(reason=reason)])
        self._log.release()

    def stop(self, reason: str) -> None:
        """End the search with what is being measured now; a new best is still measured again."""
        self._stop = self._stop or reason

    def _budget_so_far(self) -> Budget:
        return self.state.budget if self._run is not None else self._budget

    @staticmethod
    def _inline(_concurrency: int, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        done(work())

    def _dispatch(self, tasks: dict[Future[Any], Callable[[Any], None]]) -> None:
        """Start measurements while slots are free."""
        while len(self._jobs) < self.parts.farm.slots:
            job = self._next_job()
            if job is None:
                return

            def done(measurement: Measurement, job: Job = job) -> None:
                self.tell(job, measurement)

            tasks[self.parts.farm.submit(self.problem, job)] = done

    # ------------------------------------------------------------------------------ measuring

    def _next_job(self) -> Job | None:
        state = self.state
        running = {job.kernel.id for job in self._jobs.values()}
        quote = self.parts.farm.quote(self.problem)
        unpaid: dict[Resource, float] = {
            name: cost for name, cost in quote.items() if name != Resource.MEASUREMENTS
        }
        if state.reference is None:
            seed = state.incumbent.kernel_id
            return None if running else self._reserve_job("reference", seed, unpaid)
        for key in state.unconfirmed:
            # A kernel that another has overtaken need not be confirmed to be the best.
            if (
                key not in running
                and state.archive[key].log2_speedup > state.incumbent.log2_speedup
            ):
                return self._reserve_job("confirmation", key, unpaid)
        if self._stop is not None:
            return None
        for key in list(state.pending):
            if key in running or self._recall(state.pending[key]):
                continue
            return self._reserve_job("search", key, quote)
        return None

    def _reserve_job(self, purpose: Any, key: str, spend: Spend) -> Job | None:
        entry = f"{purpose}-{self.state.attempts}"
        try:
            self._append([Reserved(entry=entry, spend=spend)])
        except BudgetExceeded as error:
            self._stop = f"budget spent: {error}"
            return None
        job = Job(entry=entry, purpose=purpose, kernel=self._kernel(key), seed=self._seed(entry))
        self._jobs[entry] = job
        return job

    def _recall(self, pending: Pending) -> bool:
        """Take another run's measurement of the same kernel here, which costs nothing."""
        if not self.spec.reuse:
            return False
        farm = self.parts.farm
        key = pending.candidate.kernel_id
        known = self.store.cached_measurement(key, self.problem.id, farm.device.id, farm.toolchain)
        if known is None:
            return False
        self._record("search", self._kernel(key), known, [], cached=True)
        return True

    def _record(
        self,
        purpose: Any,
        kernel: Kernel,
        measurement: Measurement,
        events: list[Event],
        *,
        cached: bool = False,
    ) -> None:
        pending = self.state.pending.get(kernel.id) if purpose == "search" else None
        calibration = (
            scoring.judge(pending.candidate.forecast, measurement, blind=pending.audit)
            if pending
            else None
        )
        measured = Measured(
            measurement=measurement, purpose=purpose, cached=cached, calibration=calibration
        )
        self._append([*events, measured])
        if purpose != "reference":
            # A second look too: the first, which made it the best, may have been a lucky one.
            observation = Observation(
                kernel=kernel,
                measurement=measurement,
                evidence=pending.candidate.evidence if pending else None,
                forecast=pending.candidate.forecast if pending else None,
                chosen=pending.chosen if pending else 1.0,
            )
            self.parts.forecaster.learn([observation])
            self._learnt += 1
        if self.state.hopeless is not None and self._stop is None:
            self._stop = f"stopped: the first {self.state.measured} measurements failed alike"
        if self.state.left(Resource.MEASUREMENTS) < 1 and self._stop is None:
            self._stop = "budget spent: all measurements made"

    # ------------------------------------------------------------------------------- thinking

    def _think(self, *, free_slots: int, start: Callable[..., None]) -> bool:
        """Propose, forecast and decide as far as possible now; False where nothing was started."""
        slow = self.parts.proposer.concurrency or self.parts.forecaster.concurrency
        # What is quick is thought of last, when it knows the most.
        if self.state.reference is None or (free_slots < 1 and not slow):
            return False
        return self._propose(start) or self._forecast(start) or self._decide(free_slots)

    def _propose(self, start: Callable[..., None]) -> bool:
        proposer, state = self.parts.proposer, self.state
        wanted = self.parts.policy.pool_size - len(state.open) - self._asking
        if state.budget.candidates is not None:
            wanted = min(wanted, state.budget.candidates - state.considered - self._asking)
        busy = self._asking >= max(1, proposer.concurrency)
        if self._is_exhausted() or wanted < 1 or busy:
            return False
        # A slow proposer is asked for one kernel at a time, so that answers come as they are ready.
        count = 1 if proposer.concurrency else wanted
        # Counted here too, because those that are being answered have left no event yet.
        ordinal = max(state.requests, self._requests)
        self._requests = ordinal + 1
        seed = self._seed(f"proposal {ordinal}")
        sent_back = self._sent_back()
        if sent_back is not None:
            count, chosen = 1, [sent_back.parent_id]
            self._repairing.add(sent_back.kernel_id)
        else:
            archive = list(state.archive.values())
            chosen = self.parts.strategy.select(archive, 2, seed, stale=state.stale)
        parent, *others = (state.archive[key] for key in chosen)
        request = ProposalRequest(
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
            repair=sent_back
            and Repair(kernel=self._kernel(sent_back.kernel_id), complaint=sent_back.complaint),
        )
        entry = self._reserve(f"proposal-{state.attempts}", proposer.quote(request))
        if self._stop is not None:
            return False
        self._asking += count

        def done(proposals: Proposals) -> None:
            self._asking -= count
            self._admit(request, entry, proposals)

        start(proposer.concurrency, lambda: proposer.propose(request), done)
        return True

    def _sent_back(self) -> SentBack | None:
        """A candidate whose proposer has not yet been told what is wrong with it."""
        if not self.parts.proposer.repairs:
            return None
        waiting = (
            each
            for each in reversed(self.state.sent_back)
            if each.kernel_id not in self._repairing and each.parent_id in self.state.archive
        )
        return next(waiting, None)

    def _admit(self, request: ProposalRequest, entry: str | None, answer: Proposals) -> None:
        """Deduplicate and record what was proposed."""
        new = {kernel.id: kernel for kernel in answer.kernels}
        seen = self._log.seen(new) | {self._started.seed_kernel_id}
        repairs = request.repair and request.repair.kernel.id
        events: list[Event] = _settle(entry, answer.usage, _PROPOSAL)
        if answer.failure or answer.missed or not (new or answer.exhausted):
            events.append(
                Unanswered(
                    parent_id=request.parent.id,
                    request=request.ordinal,
                    missed=answer.missed,
                    reason=answer.failure,
                    repairs=repairs,
                )
            )
        events += [
            Proposed(
                kernel_id=key,
                parent_id=request.parent.id,
                proposer=self.parts.proposer.name,
                request=request.ordinal,
                duplicate=key in seen,
                claim=answer.claims.get(key, Claim()),
                repairs=repairs,
            )
            for key in new
        ]
        fresh = [kernel for key, kernel in new.items() if key not in seen]
        if events:
            self._append(events, fresh)
        self._exhausted |= answer.exhausted

    def _is_exhausted(self) -> bool:
        """Whether no more candidates come. By the state, so that a resumed run thinks the same."""
        state, most = self.state, self.state.budget.candidates
        enough = most is not None and state.considered >= most
        return self._exhausted or enough or state.fruitless >= _FRUITLESS_LIMIT

    def _forecast(self, start: Callable[..., None]) -> bool:
        forecaster = self.parts.forecaster
        if forecaster.refreshes and self._fresh_at < self._learnt:
            self._fresh, self._fresh_at = {}, self._learnt
        wanted = [
            candidate
            for key, candidate in self.state.open.items()
            if key not in self._thinking and key not in self._fresh and candidate.forecast is None
        ]
        if forecaster.concurrency:
            # One candidate a call, so that the first answers are used while others are awaited.
            wanted = wanted[:1] if len(self._thinking) < forecaster.concurrency else []
        if not wanted:
            return False
        # All at once: one by one they take longer to read than to forecast.
        kernels = self.store.kernels([candidate.kernel_id for candidate in wanted])
        queries = [self._query(*pair) for pair in zip(wanted, kernels, strict=True)]
        entry = self._reserve(f"forecast-{self.state.attempts}", forecaster.quote(queries))
        if self._stop is not None:
            return False
        keys = [candidate.kernel_id for candidate in wanted]
        self._thinking.update(keys)

        def work() -> tuple[list[Evidence], list[Forecast]]:
            informed = [self._inspect(query) for query in queries] if self.spec.inspect else queries
            evidence = [query.evidence for query in informed if query.evidence is not None]
            return evidence, consult(forecaster, informed)

        def done(answer: tuple[list[Evidence], list[Forecast]]) -> None:
            self._thinking.difference_update(keys)
            self._take_forecasts(keys, entry, *answer)

        start(forecaster.concurrency, work, done)
        return True

    def _inspect(self, query: Query) -> Query:
        """The query with what compiling tells of both kernels; of an anchor it is kept."""
        farm, anchors = self.parts.farm, self._anchor_evidence
        if query.anchor.id not in anchors:
            anchors[query.anchor.id] = farm.inspect(self.problem, query.anchor)
        evidence = query.evidence or farm.inspect(self.problem, query.candidate)
        known = {"evidence": evidence, "anchor_evidence": anchors[query.anchor.id]}
        return query.model_copy(update=known)

    def _query(self, candidate: Candidate, kernel: Kernel) -> Query:
        anchor = self.state.anchor(candidate.parent_id)
        return Query(
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

    def _take_forecasts(
        self,
        keys: list[str],
        entry: str | None,
        evidence: list[Evidence],
        forecasts: list[Forecast],
    ) -> None:
        usage = Usage.total(forecast.usage for forecast in forecasts)
        events: list[Event] = _settle(entry, usage, _FORECAST)
        for each in evidence:
            if self.state.open[each.kernel_id].evidence is None:
                events.append(Inspected(kernel_id=each.kernel_id, evidence=each))
            if each.failure is not None:
                decision = Decision(action="drop", score=0.0, reason="does not compile")
                events.append(Decided(kernel_id=each.kernel_id, decision=decision))
        broken = {each.kernel_id for each in evidence if each.failure is not None}
        answers = {k: each for k, each in zip(keys, forecasts, strict=True) if k not in broken}
        if self.parts.forecaster.refreshes:
            # Free and soon replaced: only the forecast that is decided upon becomes an event.
            self._fresh |= answers
        else:
            events += [Forecasted(kernel_id=key, forecast=each) for key, each in answers.items()]
        if events:
            self._append(events)

    def _decide(self, free_slots: int) -> bool:
        state = self.state
        if free_slots < 1:
            return False
        view = View(
            seed=self.spec.seed,
            incumbent_log2=state.incumbent.log2_speedup,
            noise_log2=state.noise_log2,
            measured=state.measured,
            free_slots=free_slots,
            measurements_left=state.left(Resource.MEASUREMENTS),
            proposals_exhausted=self._is_exhausted() and not self._asking,
            stale=state.stale,
            considered=state.considered,
            audits=tuple(state.audits),
        )
        pool = [
            each.model_copy(update={"forecast": self._fresh[key]}) if key in self._fresh else each
            for key, each in state.open.items()
            if key in self._fresh or each.forecast is not None
        ]
        decisions = self.parts.policy.decide(pool, view)
        if not decisions:
            return False
        events: list[Event] = []
        for candidate in pool:
            key, forecast = candidate.kernel_id, candidate.forecast
            decision = decisions.get(key)
            if decision is None:
                continue
            if key in self._fresh:
                events.append(Forecasted(kernel_id=key, forecast=self._fresh.pop(key)))
            trusted = decision.action == "trust" and forecast is not None
            median = forecast.against_reference().quantile(0.5) if trusted and forecast else None
            events.append(Decided(kernel_id=key, decision=decision, log2_speedup=median))
        self._append(events)
        return True

    # -------------------------------------------------------------------------------- helpers

    def _reserve(self, entry: str, spend: Spend) -> str | None:
        """Reserve for a model's answer; None where it costs nothing or the budget is spent."""
        if not spend:
            return None
        try:
            self._append([Reserved(entry=entry, spend=spend)])
        except BudgetExceeded as error:
            self._stop = f"budget spent: {error}"
            return None
        return entry

    def _runtime_s(self, log2_speedup: float) -> float:
        """Seconds a call at this speedup, from the reference's own measured time."""
        reference = self.state.reference
        assert reference is not None
        assert reference.timing is not None
        return reference.timing.reference_runtime_s / float(2.0**log2_speedup)

    def _seed(self, purpose: str) -> int:
        """A seed that depends on the run's seed and the purpose alone, so that resuming agrees."""
        return int(content_hash(f"{self.spec.seed} {purpose}")[:15], 16)


def _in_background(work: Callable[[], Any]) -> Future[Any]:
    """Start slow thinking on a thread of its own; one that is abandoned keeps nobody waiting."""
    future: Future[Any] = Future()

    def think() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=think, name="think", daemon=True).start()
    return future


_PROPOSAL = (Resource.PROPOSAL_TOKENS, Resource.PROPOSAL_USD)
_FORECAST = (Resource.FORECAST_TOKENS, Resource.FORECAST_USD)


def _settle(entry: str | None, usage: Usage, resources: tuple[Resource, Resource]) -> list[Event]:
    if entry is None:
        return []
    tokens, usd = resources
    spend = {tokens: usage.tokens, usd: usage.usd}
    return [Settled(entry=entry, spend=spend, unknown=usage.unknown)]
