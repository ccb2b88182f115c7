"""What `protocols.py` and the store promise, as suites to subclass; pytest itself is not needed.

Each test method's docstring is the clause of the contract it holds a part to.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kernelcast.canonical import kernel_id
from kernelcast.errors import BudgetExceeded, NoDevice, SetupError, StoreError
from kernelcast.events import (
    Event,
    Measured,
    Proposed,
    Reserved,
    Settled,
    Voided,
)
from kernelcast.protocols import Backend, Farm, Forecaster, Policy, Proposer, Strategy
from kernelcast.state import State
from kernelcast.testing.fakes import (
    BrokenBackend,
    RendezvousBackend,
    SyntheticBackend,
    example_history,
    make_candidate,
    make_kernel,
    make_query,
    make_request,
    make_view,
    synthetic_kernels,
    synthetic_problem,
)
from kernelcast.types import (
    Attempt,
    Audit,
    Candidate,
    Case,
    Claim,
    FailureKind,
    Forecast,
    Job,
    Kernel,
    Measurement,
    Node,
    Observation,
    Problem,
    ProposalRequest,
    Query,
    Repair,
    Resource,
    Spend,
    Usage,
    content_hash,
)

if TYPE_CHECKING:
    # Only a suite for stores needs a database library, and its author has one.
    from kernelcast.store import Run, Store


@contextmanager
def _refused(error: type[Exception]) -> Iterator[None]:
    try:
        yield
    except error:
        return
    raise AssertionError(f"{error.__name__} was expected")


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kernelcast-contract-") as name:
        yield Path(name)


# ---------------------------------------------------------------------------------- proposer


class ProposerContract:
    """Holds a `Proposer` to its contract."""

    def make(self) -> Proposer:
        """The proposer under test."""
        raise NotImplementedError

    def request(self, count: int, seed: int) -> ProposalRequest:
        """A request it can answer; the synthetic problem's seed kernel is the parent."""
        return make_request(count, seed)

    def test_proposes_at_most_what_was_asked_for(self) -> None:
        """`count` bounds the kernels of an answer."""
        for count in (1, 3):
            found = self.make().propose(self.request(count, seed=1)).kernels
            assert len(found) <= count, f"asked for {count}, got {len(found)}"

    def test_proposes_something_or_says_why_not(self) -> None:
        """An answer without a kernel is exhausted, or carries a failure."""
        answer = self.make().propose(self.request(3, seed=2))
        assert answer.kernels or answer.exhausted or answer.failure

    def test_kernels_are_named_by_their_canonical_source(self) -> None:
        """Ids are canonical and the language is the problem's."""
        request = self.request(3, seed=3)
        for kernel in self.make().propose(request).kernels:
            assert kernel.language == request.problem.language
            assert kernel.id == kernel_id(kernel.source, kernel.language)

    def test_the_quote_covers_the_cost(self) -> None:
        """What an answer cost was quoted before it was asked for."""
        proposer, request = self.make(), self.request(3, seed=4)
        quote = proposer.quote(request)
        _assert_covered(
            quote,
            proposer.propose(request).usage,
            tokens=Resource.PROPOSAL_TOKENS,
            usd=Resource.PROPOSAL_USD,
        )

    def test_an_inline_proposer_is_reproducible(self) -> None:
        """With `concurrency` 0 the seed alone decides, whatever was asked before."""
        proposer = self.make()
        assert proposer.concurrency >= 0
        if proposer.concurrency == 0:
            first = proposer.propose(self.request(3, seed=5)).kernels
            proposer.propose(self.request(2, seed=6))
            assert proposer.propose(self.request(3, seed=5)).kernels == first
            assert self.make().propose(self.request(3, seed=5)).kernels == first

    def test_claims_are_of_what_was_proposed(self) -> None:
        """`claims` are by the ids of the answer's own kernels."""
        answer = self.make().propose(self.request(3, seed=7))
        assert set(answer.claims) <= {kernel.id for kernel in answer.kernels}

    def test_a_past_and_a_partner_are_no_reason_to_stumble(self) -> None:
        """A lineage's history and a second parent may be used or not; the answer is as valid."""
        partner = make_kernel("void other() {}\n")
        tried = (
            Attempt(claim=Claim(idea="wider", moves=("vectorise",)), outcome="compile_error"),
            Attempt(claim=Claim(), outcome="measured", log2_change=0.5, measured=True),
        )
        for seed in range(4):
            past = {"partner": partner, "partner_log2_speedup": 1.0, "history": tried}
            self._assert_answers(self.request(2, seed).model_copy(update=past))

    def test_what_is_sent_back_is_answered(self) -> None:
        """Who `repairs` answers a kernel that was sent back with one kernel, or says why not."""
        if self.make().repairs:
            repair = Repair(kernel=make_kernel("void broken( {}\n"), complaint="expected ')'")
            self._assert_answers(self.request(1, seed=8).model_copy(update={"repair": repair}))

    def _assert_answers(self, request: ProposalRequest) -> None:
        proposer = self.make()
        quote = proposer.quote(request)
        answer = proposer.propose(request)
        assert len(answer.kernels) <= request.count
        assert answer.kernels or answer.exhausted or answer.failure
        assert set(answer.claims) <= {kernel.id for kernel in answer.kernels}
        tokens, usd = Resource.PROPOSAL_TOKENS, Resource.PROPOSAL_USD
        _assert_covered(quote, answer.usage, tokens=tokens, usd=usd)


def _assert_covered(quote: Spend, usage: Usage, *, tokens: Resource, usd: Resource) -> None:
    assert set(quote) <= {tokens, usd}, f"quoted in foreign resources: {sorted(quote)}"
    assert usage.tokens <= quote.get(tokens, 0.0), f"{usage.tokens} tokens, quoted {quote}"
    assert usage.usd <= quote.get(usd, 0.0) + 1e-12, f"{usage.usd} usd, quoted {quote}"


# -------------------------------------------------------------------------------- forecaster


class ForecasterContract:
    """Holds a `Forecaster` to its contract, on the synthetic problem."""

    taught: int = 24

    def make(self) -> Forecaster:
        """The forecaster under test, untaught."""
        raise NotImplementedError

    def test_one_forecast_a_query_in_order(self) -> None:
        """As many answers as questions, each naming its question's anchor."""
        self._assert_valid(self.make())

    def test_learning_keeps_forecasts_valid(self) -> None:
        """After teaching, whole or piece by piece, the same holds."""
        lessons = self._lessons(self.taught)
        forecaster = self.make()
        for count, lesson in enumerate(lessons, start=1):
            forecaster.learn([lesson])
            if count in (1, 4):
                self._assert_valid(forecaster)
        self._assert_valid(forecaster)

    def test_learning_from_failures_alone_keeps_forecasts_valid(self) -> None:
        """Not one timed kernel is no reason to stumble."""
        failures = [each for each in self._lessons(400) if each.measurement.failure is not None]
        forecaster = self.make()
        forecaster.learn(failures[: self.taught])
        self._assert_valid(forecaster)

    def test_nothing_asked_nothing_answered(self) -> None:
        """No query: no forecast and no cost, taught or not; learning nothing is allowed."""
        forecaster = self.make()
        assert forecaster.forecast([]) == []
        assert not any(forecaster.quote([]).values())
        forecaster.learn([])
        forecaster.learn(self._lessons(self.taught))
        assert forecaster.forecast([]) == []

    def test_the_quote_covers_the_cost(self) -> None:
        """What the answers cost was quoted before; what refreshes costs nothing."""
        forecaster, queries = self.make(), self._queries()
        quote = forecaster.quote(queries)
        usages = [forecast.usage for forecast in forecaster.forecast(queries)]
        total = Usage(
            input_tokens=sum(usage.input_tokens for usage in usages),
            output_tokens=sum(usage.output_tokens for usage in usages),
            usd=sum(usage.usd for usage in usages),
        )
        _assert_covered(quote, total, tokens=Resource.FORECAST_TOKENS, usd=Resource.FORECAST_USD)
        assert not (forecaster.refreshes and any(quote.values())), "refreshing must be free"

    def test_the_same_lessons_give_the_same_forecasts(self) -> None:
        """Two that were taught alike answer alike, and asking changes nothing."""
        queries, lessons = self._queries(), self._lessons(self.taught)
        first, second = self.make(), self.make()
        first.learn(lessons)
        second.forecast(queries)
        second.learn(lessons)
        answers = [_beliefs(each) for each in first.forecast(queries)]
        assert [_beliefs(each) for each in second.forecast(queries)] == answers
        assert [_beliefs(each) for each in first.forecast(queries)] == answers

    def _queries(self) -> list[Query]:
        """Candidates from the template and without parameters, against unlike anchors."""
        problem = synthetic_problem()
        written = make_kernel(problem.seed_source.replace("int64_t i", "long i"))
        kernels = [written, *synthetic_kernels(4, seed=7)]
        return [make_query(each, problem, 0.5 * index) for index, each in enumerate(kernels)]

    def _lessons(self, count: int) -> list[Observation]:
        problem, backend = synthetic_problem(), SyntheticBackend()
        return [
            Observation(kernel=kernel, measurement=backend.measure(problem, kernel, 0))
            for kernel in synthetic_kernels(count, seed=8)
        ]

    def _assert_valid(self, forecaster: Forecaster) -> None:
        queries = self._queries()
        forecasts = forecaster.forecast(queries)
        assert len(forecasts) == len(queries)
        for query, forecast in zip(queries, forecasts, strict=True):
            assert forecast.forecaster == forecaster.name
            assert forecast.anchor_id == query.anchor.id
            assert forecast.anchor_log2_speedup == query.anchor_log2_speedup
            chances = list(forecast.failure.values())
            assert all(0.0 <= chance <= 1.0 for chance in chances), f"{forecast.failure}"
            assert sum(chances) <= 1.0 + 1e-9, f"{forecast.failure}"
            assert math.isfinite(forecast.against_reference().mean())


def _beliefs(forecast: Forecast) -> Forecast:
    """The forecast without what may differ between two equal answers: seconds."""
    return forecast.model_copy(update={"usage": Usage()})


# ------------------------------------------------------------------------------------ policy


class PolicyContract:
    """Holds a `Policy` to its contract; a baseline that ignores forecasts sets `heeds` to False."""

    heeds: bool = True

    def make(self) -> Policy:
        """The policy under test."""
        raise NotImplementedError

    def test_decides_on_members_of_the_pool_only(self) -> None:
        """Every decision names a candidate it was shown; audits and measures are allowed."""
        policy = self.make()
        assert policy.pool_size >= 1
        for count in (1, policy.pool_size, 2 * policy.pool_size):
            for exhausted in (False, True):
                pool = _pool(count)
                view = make_view(free_slots=2, proposals_exhausted=exhausted)
                shown = {candidate.kernel_id for candidate in pool}
                assert set(policy.decide(pool, view)) <= shown

    def test_an_empty_pool_needs_no_decision(self) -> None:
        """Nothing shown, nothing decided."""
        for exhausted in (False, True):
            assert self.make().decide([], make_view(proposals_exhausted=exhausted)) == {}

    def test_a_full_pool_and_a_free_slot_lead_to_a_decision(self) -> None:
        """The loop asks for no more than `pool_size` candidates, so a full pool must move on."""
        policy = self.make()
        assert policy.decide(_pool(policy.pool_size), make_view(free_slots=1))

    def test_no_candidate_waits_for_ever(self) -> None:
        """Once proposals are exhausted, each look with a free slot decides something."""
        for forecasts in (True, False):
            policy = self.make()
            pool = _pool(policy.pool_size, forecasts=forecasts)
            measured = 0
            while pool:
                view = make_view(proposals_exhausted=True, measured=measured)
                decided = policy.decide(pool, view)
                assert decided, f"{len(pool)} candidates wait and a slot is free"
                measured += sum(each.action in ("measure", "audit") for each in decided.values())
                pool = [each for each in pool if each.kernel_id not in decided]

    def test_only_what_was_forecast_is_trusted(self) -> None:
        """Without a forecast there is nothing to trust."""
        policy = self.make()
        pool = _pool(policy.pool_size, forecasts=False)
        decided = policy.decide(pool, make_view(free_slots=4, proposals_exhausted=True))
        assert all(decision.action != "trust" for decision in decided.values())

    def test_the_same_sight_leads_to_the_same_decisions(self) -> None:
        """Decisions follow from pool and view alone; they say why."""
        policy = self.make()
        pool, view = _pool(policy.pool_size), make_view(free_slots=3)
        first = policy.decide(pool, view)
        policy.decide(_pool(3), make_view(seed=9))
        assert policy.decide(pool, view) == first == self.make().decide(pool, view)
        assert all(decision.reason for decision in first.values())

    def test_stagnation_stops_nothing(self) -> None:
        """However long the last new best is ago, a full pool moves on, within its members."""
        policy = self.make()
        pool = _pool(policy.pool_size)
        for stale in (0, 30, 10_000):
            decided = policy.decide(pool, make_view(stale=stale, measured=stale, free_slots=2))
            assert decided
            assert set(decided) <= {candidate.kernel_id for candidate in pool}

    def test_what_was_objected_to_is_dropped(self) -> None:
        """Not measured unless audited, where audits bear objections out and others are open."""
        policy = self.make()
        size = max(policy.pool_size, 2)
        pool = [_objected(each) if each.ordinal < size // 2 else each for each in _pool(size)]
        view = make_view(proposals_exhausted=True, audits=_clean_audits())
        decided = policy.decide(pool, view)
        for candidate in pool[: size // 2] if self.heeds else ():
            assert decided[candidate.kernel_id].action in ("drop", "audit")

    def test_an_objection_is_never_trusted(self) -> None:
        """A kernel that is not what it claims to be is no parent."""
        policy = self.make()
        pool = [_objected(each) for each in _close_behind(policy.pool_size)]
        for audits in ((), _clean_audits()):
            decided = policy.decide(pool, make_view(free_slots=2, audits=audits))
            assert all(decision.action != "trust" for decision in decided.values())

    def test_doubt_ends_a_chain_of_trust(self) -> None:
        """What descends from guesswork is not trusted, be its own forecast ever so sure."""
        policy = self.make()
        pool = [
            each.model_copy(update={"chain_std": 3.0}) for each in _close_behind(policy.pool_size)
        ]
        decided = policy.decide(pool, make_view(free_slots=2, audits=_clean_audits()))
        assert all(decision.action != "trust" for decision in decided.values())

    def test_no_forecaster_can_close_the_search(self) -> None:
        """Of a full pool of several, something is measured, be all of it ruled out or objected to.

        A policy that judges candidates one by one may rule out each of them.
        """
        policy = self.make()
        if policy.pool_size == 1:
            return
        hopeless = [make_candidate(index, -9.0, 0.01) for index in range(policy.pool_size)]
        for pool in (hopeless, [_objected(each) for each in hopeless]):
            for measured in range(5):
                view = make_view(measured=measured, audits=_clean_audits())
                decided = policy.decide(pool, view).values()
                assert any(each.action in ("measure", "audit") for each in decided)


def _pool(count: int, *, forecasts: bool = True) -> list[Candidate]:
    means = np.random.default_rng(0).normal(0.0, 1.0, size=count)
    widths = np.resize([0.05, 0.3, 1.0], count)
    return [
        make_candidate(index, float(mean) if forecasts else None, float(width))
        for index, (mean, width) in enumerate(zip(means, widths, strict=True))
    ]


def _close_behind(count: int) -> list[Candidate]:
    """Candidates that are surely a little slower than the incumbent: as parents, good enough."""
    return [make_candidate(index, -0.15, 0.02) for index in range(count)]


def _objected(candidate: Candidate) -> Candidate:
    assert candidate.forecast is not None
    forecast = candidate.forecast.model_copy(update={"objection": "nothing has changed"})
    return candidate.model_copy(update={"forecast": forecast})


def _clean_audits() -> tuple[Audit, ...]:
    """Enough of them to believe the forecasts: what was unlikely never was a new best."""
    return tuple(Audit(p_new_best=0.05 * (index % 10), new_best=False) for index in range(300))


# ---------------------------------------------------------------------------------- strategy


class StrategyContract:
    """Holds a `Strategy` to its contract."""

    def make(self) -> Strategy:
        """The strategy under test."""
        raise NotImplementedError

    def test_chooses_distinct_members_of_the_archive(self) -> None:
        """Up to `count` parents, none twice, all from the archive, never none."""
        for size in (1, 2, 30):
            archive = _archive(size)
            members = {node.kernel_id for node in archive}
            for count in range(1, size + 3):
                for seed in range(5):
                    for stale in (0, 1_000):
                        chosen = self.make().select(archive, count, seed, stale=stale)
                        assert 1 <= len(chosen) <= count
                        assert set(chosen) <= members
                        assert len(set(chosen)) == len(chosen), f"twice the same: {chosen}"

    def test_the_seed_decides_and_the_order_of_the_archive_does_not(self) -> None:
        """Same archive, seed and stagnation, same parents, whatever was asked before."""
        archive = _archive(30)
        shuffled = [archive[i] for i in np.random.default_rng(1).permutation(len(archive))]
        strategy = self.make()
        for seed in range(10):
            for stale in (0, 1_000):
                first = self.make().select(archive, 5, seed, stale=stale)
                assert strategy.select(archive, 5, seed, stale=stale) == first
                assert strategy.select(shuffled, 5, seed, stale=stale) == first

    def test_a_lost_ancestor_does_no_harm(self) -> None:
        """Kernels whose parents were evicted can still be chosen."""
        orphans = [node for node in _archive(30) if node.origin != "seed"][5:]
        for stale in (0, 1_000):
            assert self.make().select(orphans, 3, 0, stale=stale)


def _archive(size: int) -> list[Node]:
    """A seed and its descendants: ties, forecasts with their doubt, several kinds of kernels."""
    rng = np.random.default_rng(0)
    nodes = [
        Node(kernel_id=content_hash("node 0"), parent_id=None, log2_speedup=0.0, origin="seed")
    ]
    for index in range(1, size):
        parent = nodes[int(rng.integers(len(nodes)))]
        guessed = index % 5 == 0
        nodes.append(
            Node(
                kernel_id=content_hash(f"node {index}"),
                parent_id=parent.kernel_id,
                log2_speedup=float(rng.integers(-2, 3)) / 2,
                origin="forecast" if guessed else "measured",
                visits=int(rng.integers(4)),
                std_log2=0.1 if guessed else 0.0,
                behaviour=(int(rng.integers(3)), int(rng.integers(2))),
            )
        )
    return nodes


# ----------------------------------------------------------------------------------- backend


class BackendContract:
    """Holds a `Backend` to its contract; three tests measure, so choose a problem that is quick.

    Where there is no device to launch on, the contract holds up to the launch: measuring a kernel
    that compiles raises `NoDevice`.
    """

    tie_log2: float = 0.3  # how far the reference against itself may be from 0 on a busy machine

    def make(self) -> Backend:
        """The backend under test; each test closes the one it made."""
        raise NotImplementedError

    def problem(self) -> Problem:
        """A problem in a language the backend takes; by default y = 2 x in C++."""
        # Half a millisecond a call: a shorter one says more about the clock than about a tie.
        case = Case(name="main", dimensions={"N": 1 << 20})
        return synthetic_problem().model_copy(update={"cases": (case,)})

    def launches(self) -> bool:
        """Whether the backend's device is in this machine."""
        return True

    def broken_source(self) -> str:
        """Source that does not compile."""
        return "this is no program"

    def wrong_source(self) -> str:
        """Source that compiles and computes something else."""
        return self.problem().seed_source.replace("2.0f", "3.0f")

    def test_the_reference_ties_with_itself(self) -> None:
        """A right kernel gets a timing of every timed case; the seed kernel's is about 0."""
        problem, kernel = self.problem(), self._kernel(self.problem().seed_source)
        with closing(self.make()) as backend:
            if not self.launches():
                with _refused(NoDevice):
                    backend.measure(problem, kernel, seed=1)
                return
            measurement = backend.measure(problem, kernel, seed=1)
            self._assert_named(backend, kernel, measurement)
        timing = measurement.timing
        assert timing is not None, f"the seed kernel fails: {measurement.failure}"
        assert abs(timing.log2_speedup) <= self.tie_log2, f"2^{timing.log2_speedup} of itself"
        assert timing.low <= timing.log2_speedup <= timing.high
        assert timing.runtime_s > 0.0
        assert timing.reference_runtime_s > 0.0
        assert [each.case for each in timing.cases] == [each.name for each in problem.timed_cases]
        assert all(each.log2_ratios for each in timing.cases)

    def test_what_does_not_compile_is_a_value(self) -> None:
        """`inspect` and `measure` both return a compile error; neither raises."""
        problem, kernel = self.problem(), self._kernel(self.broken_source())
        with closing(self.make()) as backend:
            evidence = backend.inspect(problem, kernel)
            measurement = backend.measure(problem, kernel, seed=2)
            self._assert_named(backend, kernel, measurement)
        for failure in (evidence.failure, measurement.failure):
            assert failure is not None
            assert failure.kind is FailureKind.COMPILE_ERROR
            assert failure.message

    def test_a_wrong_result_is_a_value(self) -> None:
        """A kernel that computes something else has no time."""
        problem, kernel = self.problem(), self._kernel(self.wrong_source())
        with closing(self.make()) as backend:
            if not self.launches():
                with _refused(NoDevice):
                    backend.measure(problem, kernel, seed=3)
                return
            measurement = backend.measure(problem, kernel, seed=3)
            self._assert_named(backend, kernel, measurement)
        assert measurement.failure is not None
        assert measurement.failure.kind is FailureKind.WRONG_RESULT

    def test_care_is_recorded(self) -> None:
        """A measurement says with what effort it was made and what confined the kernel."""
        problem, kernel = self.problem(), self._kernel(self.broken_source())
        with closing(self.make()) as backend:
            assert backend.measure(problem, kernel, seed=4).effort == "screening"
            measurement = backend.measure(problem, kernel, seed=4, effort="normal")
            assert measurement.effort == "normal"
            assert measurement.sandbox == getattr(backend, "level", measurement.sandbox)

    def test_evidence_names_its_kernel(self) -> None:
        """What compiles has evidence without a failure."""
        problem, kernel = self.problem(), self._kernel(self.problem().seed_source)
        with closing(self.make()) as backend:
            evidence = backend.inspect(problem, kernel)
            assert evidence.toolchain == backend.toolchain
        assert evidence.kernel_id == kernel.id
        assert evidence.failure is None

    def test_closing_twice_does_no_harm(self) -> None:
        """A farm and its owner may both close a backend."""
        backend = self.make()
        backend.close()
        backend.close()

    def _kernel(self, source: str) -> Kernel:
        language = self.problem().language
        return Kernel(id=kernel_id(source, language), language=language, source=source)

    def _assert_named(self, backend: Backend, kernel: Kernel, measurement: Measurement) -> None:
        assert measurement.kernel_id == kernel.id
        assert measurement.problem_id == self.problem().id
        assert measurement.device_id == backend.device.id
        assert measurement.toolchain == backend.toolchain
        if self.launches():
            quote = backend.quote(self.problem())
            assert quote[Resource.MEASUREMENTS] == 1
            assert 0.0 <= measurement.device_s <= quote[Resource.DEVICE_S]


# -------------------------------------------------------------------------------------- farm


class FarmContract:
    """Holds a `Farm` to its contract."""

    slots: int = 2

    def make(self, backend: Backend, slots: int) -> Farm:
        """The farm under test over this backend."""
        raise NotImplementedError

    def test_as_many_jobs_run_at_once_as_there_are_slots(self) -> None:
        """Every slot is used and none is shared."""
        with _folder() as folder:
            backend = RendezvousBackend(folder, parties=self.slots)
            with closing(self.make(backend, self.slots)) as farm:
                assert farm.slots == self.slots
                for future in self._submit(farm, 3 * self.slots):
                    future.result(timeout=60.0)
            assert backend.most_together() == self.slots

    def test_a_result_belongs_to_its_job(self) -> None:
        """Each future holds the measurement of the kernel that was submitted with it."""
        backend = SyntheticBackend()
        with closing(self.make(backend, self.slots)) as farm:
            futures = self._submit(farm, 8)
            results = [future.result(timeout=60.0) for future in futures]
        kernels = synthetic_kernels(8)
        assert results == [backend.measure(synthetic_problem(), each, 0) for each in kernels]

    def test_speaks_for_its_backend(self) -> None:
        """Device, toolchain, quote and evidence are the backend's."""
        backend, problem, (kernel,) = SyntheticBackend(), synthetic_problem(), synthetic_kernels(1)
        with closing(self.make(backend, self.slots)) as farm:
            assert farm.device == backend.device
            assert farm.toolchain == backend.toolchain
            assert farm.quote(problem) == backend.quote(problem)
            assert farm.inspect(problem, kernel) == backend.inspect(problem, kernel)

    def test_a_broken_set_up_is_raised_by_the_future(self) -> None:
        """Not by `submit`, and not as a failed kernel."""
        with closing(self.make(BrokenBackend(), self.slots)) as farm:
            (future,) = self._submit(farm, 1)
            with _refused(SetupError):
                future.result(timeout=60.0)

    def test_closing_leaves_nothing_under_way(self) -> None:
        """Jobs that have not begun are cancelled; closing again does no harm."""
        with _folder() as folder:
            farm = self.make(RendezvousBackend(folder, parties=1, hold_s=0.2), 1)
            futures = self._submit(farm, 5)
            farm.close()
            farm.close()
            assert all(future.done() for future in futures)
            assert futures[-1].cancelled()

    def _submit(self, farm: Farm, count: int) -> list[Future[Measurement]]:
        problem = synthetic_problem()
        return [
            farm.submit(
                problem, Job(entry=f"search-{index}", purpose="search", kernel=kernel, seed=index)
            )
            for index, kernel in enumerate(synthetic_kernels(count))
        ]


# ------------------------------------------------------------------------------------- store


class StoreContract:
    """Holds a `Store` on some database to its contract."""

    def make(self, folder: Path) -> Store:
        """Open the store that belongs to this folder; create it on the first call."""
        raise NotImplementedError

    def damage(self, folder: Path) -> bool:
        """Change an event's payload behind the store's back; False where there is no way to."""
        del folder
        return False

    def test_the_state_is_the_fold_of_the_events(self) -> None:
        """What was appended comes back in order, and folds to the state held and replayed."""
        events, _ = example_history()
        with self._run() as (_, run):
            expected = State()
            for event in events:
                expected.apply(event)
            assert run.state == expected
            assert run.replay() == expected
            assert list(run.events()) == events
            assert list(run.events("proposed")) == [e for e in events if isinstance(e, Proposed)]

    def test_opening_again_is_replaying(self) -> None:
        """A run that was closed goes on from the same state."""
        with _folder() as folder:
            with self.make(folder) as store:
                run = self._record(store)
            with self.make(folder) as store:
                again = store.open_run(run.name)
                assert again.state == run.state
                again.append([Voided(entry="search-5")])
                assert again.replay() == again.state
                assert [info.name for info in store.runs()] == [run.name]

    def test_a_second_writer_is_refused(self) -> None:
        """Of two that continue from the same event, the later one is told so."""
        with self._run() as (store, run):
            other = store.open_run(run.name)
            run.append([Reserved(entry="mine", spend={Resource.DEVICE_S: 1.0})])
            with _refused(StoreError):
                other.append([Reserved(entry="theirs", spend={Resource.DEVICE_S: 1.0})])
            assert run.replay() == run.state

    def test_caps_are_not_passed(self) -> None:
        """What is spent and what is promised stay within the cap together."""
        with self._run() as (_, run):
            for resource in (Resource.MEASUREMENTS, Resource.DEVICE_S):
                room = run.state.left(resource)
                assert 0.0 < room < math.inf
                before, state = run.ledger(), run.state.model_copy(deep=True)
                with _refused(BudgetExceeded):
                    run.append([Reserved(entry=f"{resource}", spend={resource: room + 0.1})])
                assert run.ledger() == before
                assert run.state == state == run.replay()
                run.append([Reserved(entry=f"{resource}", spend={resource: room})])
                with _refused(BudgetExceeded):
                    run.append([Reserved(entry=f"{resource} more", spend={resource: 0.1})])
                run.append([Voided(entry=f"{resource}")])
                assert math.isclose(run.state.left(resource), room)

    def test_a_refused_batch_leaves_nothing(self) -> None:
        """Events are written all together or not at all, and so is what they name."""
        (kernel,) = synthetic_kernels(1, seed=99)
        batch: list[Event] = [
            Proposed(kernel_id=kernel.id, parent_id="seed", proposer="fake", request=7),
            Reserved(entry="too much", spend={Resource.MEASUREMENTS: 1_000.0}),
        ]
        with self._run() as (store, run):
            with _refused(BudgetExceeded):
                run.append(batch, [kernel])
            assert run.seen([kernel.id]) == set()
            assert run.replay() == run.state
            with _refused(StoreError):
                store.kernel(kernel.id)

    def test_an_entry_is_closed_once(self) -> None:
        """Closing what is not open is refused, and so is using an entry's name again."""
        spend: Spend = {Resource.DEVICE_S: 0.5}
        refused: list[list[Event]] = [
            [Settled(entry="search-1", spend=spend)],
            [Voided(entry="search-1")],
            [Settled(entry="search-2", spend=spend)],
            [Voided(entry="never reserved")],
            [Reserved(entry="search-1", spend=spend)],
            [Voided(entry="search-5"), Voided(entry="search-5")],
            [Settled(entry="search-5", spend={Resource.FORECAST_USD: 1.0})],
        ]
        with self._run() as (_, run):
            before = run.ledger()
            for events in refused:
                with _refused(StoreError):
                    run.append(events)
            assert run.ledger() == before
            assert run.replay() == run.state

    def test_the_ledger_agrees_with_the_state(self) -> None:
        """The database's accounts are the fold's sums."""
        with self._run() as (_, run):
            ledger, caps = run.ledger(), run.state.budget.caps()
            for resource in Resource:
                account = ledger[resource]
                assert account.cap == caps.get(resource)
                assert math.isclose(account.spent, run.state.spent.get(resource, 0.0))
                assert math.isclose(account.reserved, run.state.reserved(resource), abs_tol=1e-9)

    def test_kernels_come_back_as_they_were(self) -> None:
        """Source and parameters, to the character; an unknown kernel is an error."""
        odd = make_kernel("// naïve ∑\r\nvoid kernel() {}\n", {"A": 1, "B": 0.5, "C": "x"})
        _, kernels = example_history()
        with self._run() as (store, run):
            run.append([Voided(entry="search-5")], [odd])
            assert [store.kernel(kernel.id) for kernel in [*kernels, odd]] == [*kernels, odd]
            with _refused(StoreError):
                store.kernel("0" * 32)

    def test_nobody_pays_for_a_measurement_twice(self) -> None:
        """A search's measurement is found by kernel, problem, device and toolchain, by any run."""
        events, _ = example_history()
        measured = [event for event in events if isinstance(event, Measured)]
        with self._run() as (store, _):
            for event in measured:
                found = event.measurement
                key = (found.kernel_id, found.problem_id, found.device_id, found.toolchain)
                known = store.cached_measurement(*key)
                assert known == (None if event.purpose == "reference" else found)
                for place in range(4):
                    elsewhere = ["other" if i == place else part for i, part in enumerate(key)]
                    assert store.cached_measurement(*elsewhere) is None

    def test_what_was_proposed_is_known_again(self) -> None:
        """`seen` tells, within the run and not beyond it."""
        _, (_, *kernels) = example_history()
        keys = {kernel.id for kernel in kernels}
        with self._run() as (store, run):
            assert run.seen([*keys, "0" * 32]) == keys
            assert run.seen([]) == set()
            assert store.create_run("another").seen(keys) == set()

    def test_runs_are_known_by_name(self) -> None:
        """A name is taken once, and an unknown one is an error."""
        with self._run() as (store, run):
            with _refused(StoreError):
                store.create_run(run.name)
            with _refused(StoreError):
                store.open_run("no such run")

    def test_damage_is_found(self) -> None:
        """A changed event is never folded."""
        with _folder() as folder:
            with self.make(folder) as store:
                name = self._record(store).name
            if not self.damage(folder):
                return
            with self.make(folder) as store, _refused(StoreError):
                store.open_run(name)

    @contextmanager
    def _run(self) -> Iterator[tuple[Store, Run]]:
        with _folder() as folder, self.make(folder) as store:
            yield store, self._record(store)

    def _record(self, store: Store) -> Run:
        events, kernels = example_history()
        run = store.create_run("contract")
        run.append(events[:1], kernels)
        run.append(events[1:])
        return run
