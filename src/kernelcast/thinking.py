"""The thinking of a search: it proposes, forecasts and decides, and learns from results.

The parts do the work. A slow part, such as a language model, has several requests under way at a
time; a quick one works only when a slot is free, because it knows the most then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from kernelcast import events, types
from kernelcast.certainty import consult
from kernelcast.events import Event
from kernelcast.journal import Journal
from kernelcast.protocols import Following
from kernelcast.state import Pending, SentBack, State
from kernelcast.types import Kernel, Resource, Spend

_AHEAD_PER_RESULT = 4.0  # jobs that wait in front of the slots, for each result in one turn
_MOST_AHEAD = 2  # jobs that wait for each slot
_TURNS = 5.0  # over which the number of results in a turn is averaged
_POOL_PER_SLOT = 2  # open candidates at the least, if there are several slots
_FRUITLESS_LIMIT = 30  # requests in a row without a new kernel, after which proposals are exhausted
_STALE = 8  # measurements since the last new best, after which every second request is bold
_FRUITLESS = 3  # requests in a row without a new kernel, after which it is so as well

Start = Callable[[int, Callable[[], Any], Callable[[Any], None]], None]
"""Starts work of a part with some concurrency, and passes its result to a function."""
_Answer = tuple[list[types.Evidence], list[types.Forecast]]


class Thinking:
    """Turns the state into proposals, forecasts and decisions, which are entered in the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._parts = journal.parts
        proposer = journal.parts.proposer
        self._follower = proposer if isinstance(proposer, Following) else None
        self.results = 0
        """Number of jobs that have ended since the last decision."""
        self._results_per_turn = 0.0
        self._forecasting: set[str] = set()
        self._repairing: set[str] = set()
        self._awaited_proposals = 0
        self._requests = 0
        self._exhausted = False
        self._lessons: list[types.Observation] = []
        self._learnt = 0
        self._fresh: dict[str, types.Forecast] = {}
        self._fresh_at = -1
        self._undecided = False
        self._seed_inspection: Literal["under way", "done"] | None = None

    @property
    def slow(self) -> bool:
        """Whether a part works while no slot is free.

        Inspecting for a GPU does: it compiles and emulates on the CPU, beside the device.
        """
        is_beside = self._journal.spec.inspect and self._parts.farm.device.kind == "gpu"
        return bool(
            self._parts.proposer.concurrency or self._parts.forecaster.concurrency or is_beside
        )

    def think(self, free_slots: int, start: Start) -> bool:
        """Propose, forecast or decide; return False if nothing could be started."""
        if self._journal.state.reference is None or (free_slots < 1 and not self.slow):
            return False
        return (
            self._inspect_seed(start)
            or self._propose(start)
            or self._forecast(start)
            or self._decide(free_slots)
        )

    def jobs_ahead(self, slots: int) -> int:
        """Return how many jobs end while the loop chooses the next ones; 0 if it keeps up.

        With one slot it is always 0, so that a run can be repeated exactly.
        """
        more = max(0.0, self._results_per_turn - 1.0)
        return min(_MOST_AHEAD * slots, int(_AHEAD_PER_RESULT * more)) if slots > 1 else 0

    def _inspect_seed(self, start: Start) -> bool:
        """Inspect the seed before anything is proposed: it is the first parent and anchor."""
        journal = self._journal
        if not journal.spec.inspect or self._seed_inspection is not None:
            return False
        self._seed_inspection = "done"
        if journal.state.archive[journal.seed_kernel_id].evidence is not None:
            return False
        self._seed_inspection = "under way"
        seed = journal.kernel(journal.seed_kernel_id)

        def done(evidence: types.Evidence) -> None:
            self._seed_inspection = "done"
            journal.stage(_inspected(evidence))

        start(0, lambda: self._parts.farm.inspect(journal.problem, seed).result(), done)
        return True

    def _propose(self, start: Start) -> bool:
        proposer, state = self._parts.proposer, self._journal.state
        # A pool that is smaller than the farm would leave slots idle.
        pool_size = max(self._parts.policy.pool_size, _POOL_PER_SLOT * (self._parts.farm.slots - 1))
        wanted = pool_size - len(state.open) - self._awaited_proposals
        if state.budget.candidates is not None:
            left = state.budget.candidates - state.considered - self._awaited_proposals
            wanted = min(wanted, left)
        busy = self._awaited_proposals >= max(1, proposer.concurrency)
        waits = busy or self._seed_inspection == "under way"
        if self._is_exhausted() or wanted < 1 or waits:
            return False
        # A slow proposer is asked for one kernel at a time, so that each is used when it is ready.
        count = 1 if proposer.concurrency else wanted
        # The state does not know the requests that are still being answered.
        ordinal = max(state.requests, self._requests)
        self._requests = ordinal + 1
        seed = self._journal.seed(f"proposal {ordinal}")
        repair, sent_back = None, self._sent_back()
        if sent_back is not None:
            count, chosen = 1, [sent_back.parent_id]
            self._repairing.add(sent_back.kernel_id)
            broken = self._journal.kernel(sent_back.kernel_id)
            repair = types.Repair(
                kernel=broken, complaint=sent_back.complaint, number=sent_back.repair
            )
        else:
            archive = list(state.archive.values())
            chosen = self._parts.strategy.select(archive, 2, seed, stale=state.stale)
        parent, *others = (state.archive[key] for key in chosen)
        request = types.ProposalRequest(
            ordinal=ordinal,
            problem=self._journal.problem,
            device=self._parts.farm.device,
            parent=self._journal.kernel(parent.kernel_id),
            parent_log2_speedup=parent.log2_speedup,
            parent_runtime_s=self._journal.runtime_s(parent.log2_speedup),
            parent_measured=parent.origin != "forecast",
            parent_cases=parent.cases,
            parent_evidence=parent.evidence,
            count=count,
            seed=seed,
            proposed=state.expansions,
            fruitless=state.fruitless,
            partner=self._journal.kernel(others[0].kernel_id) if others else None,
            partner_log2_speedup=others[0].log2_speedup if others else 0.0,
            history=state.history(parent.kernel_id),
            repair=repair,
            bold=repair is None and is_bold(state, seed),
            run_seed=self._journal.spec.seed,
        )
        quote = proposer.quote(request)
        entry = self._pay("proposal", quote, proposer.concurrency)
        if self._journal.stopped is not None:
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
        if not self._parts.proposer.repairs:
            return None
        waiting = (
            entry
            for entry in reversed(self._journal.state.sent_back)
            if entry.kernel_id not in self._repairing
            and entry.parent_id in self._journal.state.archive
        )
        return next(waiting, None)

    def _admit(
        self, request: types.ProposalRequest, entry: str | None, answer: types.Proposals
    ) -> None:
        """Record the proposed kernels and mark the duplicates."""
        new = {kernel.id: kernel for kernel in answer.kernels}
        assert self._journal.state.started is not None
        seen = self._journal.log.seen(new) | {self._journal.state.started.seed_kernel_id}
        repairs = request.repair and request.repair.kernel.id
        number = request.repair.number if request.repair else 0
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
                proposer=self._parts.proposer.name,
                request=request.ordinal,
                duplicate=key in seen,
                claim=answer.claims.get(key, types.Claim()),
                repairs=repairs,
                repair=number,
            )
            for key in new
        ]
        fresh = [kernel for key, kernel in new.items() if key not in seen]
        if batch:
            self._journal.stage(batch, fresh)
        if self._follower is not None:
            self._follower.admit(fresh)
        self._exhausted |= answer.exhausted

    def _is_exhausted(self) -> bool:
        """Return True if no more candidates come."""
        state, most = self._journal.state, self._journal.state.budget.candidates
        enough = most is not None and state.considered >= most
        return self._exhausted or enough or state.fruitless >= _FRUITLESS_LIMIT

    def _forecast(self, start: Start) -> bool:
        forecaster = self._parts.forecaster
        if self._forecasting and not forecaster.concurrency:
            return False
        # Forecasts are refreshed at most once a decision.
        if forecaster.refreshes and self._fresh_at < self._learnt and not self._undecided:
            self._fresh, self._fresh_at = {}, self._learnt
        known = self._forecasting | set(self._fresh)
        wanted = [
            candidate
            for key, candidate in self._journal.state.open.items()
            if key not in known and candidate.forecast is None
        ]
        if forecaster.concurrency:
            # One candidate per call, so that each forecast is used when it is ready.
            wanted = wanted[:1] if len(self._forecasting) < forecaster.concurrency else []
        if not wanted:
            return False
        keys = [candidate.kernel_id for candidate in wanted]
        # One read for all: reading them one by one takes longer than the forecasts.
        kernels = self._journal.log.kernels(keys)
        queries = [self._query(*pair) for pair in zip(wanted, kernels, strict=True)]
        quote = forecaster.quote(queries)
        entry = self._pay("forecast", quote, forecaster.concurrency)
        if self._journal.stopped is not None:
            return False
        self._forecasting.update(keys)

        def work() -> _Answer:
            informed = self._inspect(queries) if self._journal.spec.inspect else queries
            evidence = [query.evidence for query in informed if query.evidence is not None]
            return evidence, consult(forecaster, informed)

        def done(answer: _Answer) -> None:
            self._forecasting.difference_update(keys)
            self._take_forecasts(keys, entry, answer)
            self._teach()

        start(forecaster.concurrency, work, done)
        return True

    def _inspect(self, queries: Sequence[types.Query]) -> list[types.Query]:
        """Return the queries with the evidence of both kernels."""
        unknown = {
            kernel.id: kernel
            for query in queries
            for kernel, evidence in (
                (query.candidate, query.evidence),
                (query.anchor, query.anchor_evidence),
            )
            if evidence is None
        }
        futures = {
            key: self._parts.farm.inspect(self._journal.problem, kernel)
            for key, kernel in unknown.items()
        }
        compiled = {key: future.result() for key, future in futures.items()}
        return [
            query.model_copy(
                update={
                    "evidence": query.evidence or compiled[query.candidate.id],
                    "anchor_evidence": query.anchor_evidence or compiled[query.anchor.id],
                }
            )
            for query in queries
        ]

    def _query(self, candidate: types.Candidate, kernel: Kernel) -> types.Query:
        anchor = self._journal.state.anchor(candidate.parent_id)
        return types.Query(
            problem=self._journal.problem,
            device=self._parts.farm.device,
            candidate=kernel,
            writer=self._journal.spec.writer,
            anchor=self._journal.kernel(anchor.kernel_id),
            anchor_log2_speedup=anchor.log2_speedup,
            anchor_runtime_s=self._journal.runtime_s(anchor.log2_speedup),
            anchor_cases=anchor.cases,
            evidence=candidate.evidence,
            anchor_evidence=anchor.evidence,
            incumbent_log2=self._journal.state.incumbent.log2_speedup,
            claim=candidate.claim,
        )

    def _take_forecasts(self, keys: list[str], entry: str | None, answer: _Answer) -> None:
        evidence, forecasts = answer
        usage = types.Usage.total(forecast.usage for forecast in forecasts)
        batch = _settle(entry, usage, Resource.FORECAST_TOKENS, Resource.FORECAST_USD)
        answers = dict(zip(keys, forecasts, strict=True))
        for compiled in evidence:
            key = compiled.kernel_id
            if self._journal.state.open[key].evidence is None:
                batch += _inspected(compiled)
            if compiled.failure is not None:
                decision = types.Decision(action="drop", score=0.0, reason=compiled.verdict)
                batch.append(events.Decided(kernel_id=key, decision=decision))
                del answers[key]
                if self._follower is not None:
                    self._follower.refute(self._journal.kernel(key))
        if self._parts.forecaster.refreshes:
            # Only the forecast that is decided upon becomes an event: the others are soon replaced.
            self._fresh |= answers
            self._undecided = True
        else:
            batch += [events.Forecasted(kernel_id=key, forecast=answers[key]) for key in answers]
        if batch:
            self._journal.stage(batch)

    def _decide(self, free_slots: int) -> bool:
        state = self._journal.state
        refreshing = self._parts.forecaster.refreshes and bool(self._forecasting)
        if free_slots < 1 or (refreshing and not self._parts.forecaster.concurrency):
            return False
        self._undecided = False
        self._results_per_turn += (self.results - self._results_per_turn) / _TURNS
        self.results = 0
        view = types.View(
            seed=self._journal.spec.seed,
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
        decisions = self._parts.policy.decide(pool, view)
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
        self._journal.stage(batch)
        return True

    def learn(self, observation: types.Observation) -> None:
        """Let proposer and forecaster learn from a measurement, the latter as soon as it can."""
        if self._follower is not None:
            self._follower.learn([observation])
        self._lessons.append(observation)
        self._teach()

    def _teach(self) -> None:
        """Pass new measurements to the forecaster, but not while a quick one forecasts."""
        if self._lessons and not (self._forecasting and not self._parts.forecaster.concurrency):
            self._parts.forecaster.learn(self._lessons)
            self._learnt += len(self._lessons)
            self._lessons = []

    def learn_history(self) -> None:
        """Teach the parts every measurement of the run again, as it was at that time."""
        state = State()
        here, writer = self._parts.farm.device.id, self._journal.spec.writer
        observations: list[types.Observation] = []
        follower = self._follower
        for event in self._journal.log.events():
            if follower is not None:
                if isinstance(event, events.Proposed) and not event.duplicate:
                    follower.admit([self._journal.kernel(event.kernel_id)])
                elif (
                    isinstance(event, events.Inspected)
                    and event.evidence.failure is not None
                    and event.kernel_id != self._journal.seed_kernel_id
                ):
                    follower.refute(self._journal.kernel(event.kernel_id))
            if isinstance(event, events.Measured) and event.purpose != "reference":
                kernel = self._journal.kernel(event.measurement.kernel_id)
                if event.measurement.device_id == here:
                    observations.append(observation_of(kernel, event, state, writer))
                    if follower is not None:
                        follower.learn(observations[-1:])
            state.apply(event)
        if observations:
            self._parts.forecaster.learn(observations)
        self._learnt = len(observations)

    def _pay(self, purpose: str, quote: Spend, concurrency: int) -> str | None:
        """Reserve the quote of some thinking, durably if the thinking starts at once."""
        entry = self._journal.reserve(purpose, quote) if quote else None
        if entry is not None and not concurrency:
            self._journal.commit()
        return entry


def pending_of(event: events.Measured, state: State) -> Pending | None:
    """Return the candidate that this event measures, if the search chose it."""
    key = event.measurement.kernel_id
    return state.pending.get(key) if event.purpose == "search" else None


def observation_of(
    kernel: Kernel, event: events.Measured, state: State, writer: str
) -> types.Observation:
    """Return what a forecaster learns from an event that follows this state."""
    pending = pending_of(event, state)
    if pending is None:
        return types.Observation(kernel=kernel, measurement=event.measurement, writer=writer)
    return types.Observation(
        kernel=kernel,
        measurement=event.measurement,
        writer=writer,
        evidence=pending.candidate.evidence,
        forecast=pending.candidate.forecast,
        chosen=pending.chosen,
    )


def is_bold(state: State, seed: int) -> bool:
    """Return whether a request asks for another idea in place of a small step.

    Every second one does, by its seed, once eight measurements have brought no new best, or three
    requests no new kernel.
    """
    return (state.stale >= _STALE or state.fruitless >= _FRUITLESS) and seed % 2 == 1


def _inspected(evidence: types.Evidence) -> list[Event]:
    """Return the events of an inspection; emulating costs time of the CPU."""
    key = evidence.kernel_id
    batch: list[Event] = [events.Inspected(kernel_id=key, evidence=evidence)]
    if evidence.emulation_cpu_s:
        entry, spend = f"inspection-{key}", {Resource.CPU_S: evidence.emulation_cpu_s}
        batch.append(events.Reserved(entry=entry, spend=spend))
        batch.append(events.Settled(entry=entry, spend=spend))
    return batch


def _settle(entry: str | None, usage: types.Usage, tokens: Resource, usd: Resource) -> list[Event]:
    if entry is None:
        return []
    spend = {tokens: usage.tokens, usd: usage.usd}
    return [events.Settled(entry=entry, spend=spend, unknown=usage.unknown)]
