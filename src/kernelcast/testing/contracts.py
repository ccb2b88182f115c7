"""Test suites for the promises of `protocols.py` and the store; pytest itself is not needed.

The docstring of each test method is the clause of the contract that it checks. The file is above
600 lines because it holds one suite per protocol; they share their helpers.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelcast import events, types
from kernelcast.canonical import as_kernel, kernel_id
from kernelcast.certainty import consult
from kernelcast.errors import BudgetExceeded, NoDevice, SetupError, StoreError
from kernelcast.protocols import Backend, Farm, Forecaster, Policy, Proposer, Strategy
from kernelcast.state import State
from kernelcast.testing import fakes
from kernelcast.types import Candidate, FailureKind, Resource

if TYPE_CHECKING:
    # Only a suite for stores needs a database library, and its author has one.
    from kernelcast.run import Run
    from kernelcast.store import Store

_STALE = (0, 1_000)
_HANG_S = 1800.0  # ends a test that hangs; no verdict depends on it


@contextmanager
def _raises(error: type[Exception]) -> Iterator[None]:
    try:
        yield
    except error:
        return
    raise AssertionError(f"{error.__name__} was expected")


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kernelcast-contract-") as name:
        yield Path(name)


def _assert_covered(
    quote: types.Spend, usage: types.Usage, tokens: Resource, usd: Resource
) -> None:
    assert set(quote) <= {tokens, usd}, f"quoted in foreign resources: {sorted(quote)}"
    assert usage.tokens <= quote.get(tokens, 0.0), f"{usage.tokens} tokens, quoted {quote}"
    assert usage.usd <= quote.get(usd, 0.0) + 1e-12, f"{usage.usd} usd, quoted {quote}"


class ProposerContract:
    """Tests of a `Proposer`."""

    def make(self) -> Proposer:
        """Return the proposer under test."""
        raise NotImplementedError

    def request(self, count: int, seed: int) -> types.ProposalRequest:
        """Return a request it can answer; by default for children of the synthetic seed kernel."""
        return fakes.make_request(count, seed)

    def test_answers_are_valid(self) -> None:
        """An answer has at most `count` kernels with canonical ids, or says why it has none."""
        for count, seed in ((1, 1), (3, 1), (3, 2), (3, 3)):
            self._assert_valid(self.request(count, seed))

    def test_an_inline_proposer_is_reproducible(self) -> None:
        """With `concurrency` 0 the seed alone decides, whatever was asked before."""
        proposer = self.make()
        assert proposer.concurrency >= 0
        if proposer.concurrency == 0:
            first = proposer.propose(self.request(3, seed=5)).kernels
            proposer.propose(self.request(2, seed=6))
            assert proposer.propose(self.request(3, seed=5)).kernels == first
            assert self.make().propose(self.request(3, seed=5)).kernels == first

    def test_a_history_and_a_partner_are_accepted(self) -> None:
        """The answer is valid, whether or not the proposer uses them."""
        claim = types.Claim(idea="wider", moves=("vectorise",))
        history = (
            types.Attempt(claim=claim, outcome="compile_error"),
            types.Attempt(claim=types.Claim(), outcome="measured", log2_change=0.5, measured=True),
        )
        partner = fakes.make_kernel("void other() {}\n")
        update = {"partner": partner, "partner_log2_speedup": 1.0, "history": history}
        for seed in range(4):
            changes = {**update, "bold": seed == 3}
            self._assert_valid(self.request(2, seed).model_copy(update=changes))

    def test_a_repair_is_answered(self) -> None:
        """A proposer that `repairs` answers with one kernel, or says why not."""
        if self.make().repairs:
            broken = fakes.make_kernel("void broken( {}\n")
            repair = types.Repair(kernel=broken, complaint="expected ')'")
            self._assert_valid(self.request(1, seed=8).model_copy(update={"repair": repair}))

    def _assert_valid(self, request: types.ProposalRequest) -> None:
        proposer = self.make()
        quote = proposer.quote(request)
        answer = proposer.propose(request)
        assert len(answer.kernels) <= request.count, f"{len(answer.kernels)} for {request.count}"
        assert answer.kernels or answer.exhausted or answer.failure
        assert set(answer.claims) <= {kernel.id for kernel in answer.kernels}
        for kernel in answer.kernels:
            assert kernel.language == request.problem.language
            assert kernel.id == kernel_id(kernel.source, kernel.language)
        _assert_covered(quote, answer.usage, Resource.PROPOSAL_TOKENS, Resource.PROPOSAL_USD)


class ForecasterContract:
    """Tests of a `Forecaster`, on the synthetic problem.

    The forecasts of every forecaster obey a few laws. They hold for what `consult` returns, through
    which every caller asks.
    """

    taught: int = 24

    def make(self) -> Forecaster:
        """Return the forecaster under test, untaught."""
        raise NotImplementedError

    def test_one_forecast_a_query_in_order(self) -> None:
        """There are as many forecasts as queries, each with its query's anchor."""
        self._assert_valid(self.make())

    def test_learning_keeps_forecasts_valid(self) -> None:
        """Forecasts stay valid after each observation."""
        forecaster = self.make()
        for count, lesson in enumerate(self._lessons(self.taught), start=1):
            forecaster.learn([lesson])
            if count in (1, 4):
                self._assert_valid(forecaster)
        self._assert_valid(forecaster)

    def test_learning_from_failures_alone_keeps_forecasts_valid(self) -> None:
        """No timed kernel is needed."""
        lessons = self._lessons(400)
        failures = [lesson for lesson in lessons if lesson.measurement.failure is not None]
        forecaster = self.make()
        forecaster.learn(failures[: self.taught])
        self._assert_valid(forecaster)

    def test_nothing_asked_nothing_answered(self) -> None:
        """Without a query there is no forecast and no cost; learning nothing is allowed."""
        forecaster = self.make()
        assert forecaster.forecast([]) == []
        assert not any(forecaster.quote([]).values())
        forecaster.learn([])
        forecaster.learn(self._lessons(self.taught))
        assert forecaster.forecast([]) == []

    def test_the_quote_covers_the_cost(self) -> None:
        """Answers cost at most what was quoted; a forecaster that refreshes costs nothing."""
        forecaster, queries = self.make(), self._queries()
        quote = forecaster.quote(queries)
        usage = types.Usage.total(forecast.usage for forecast in forecaster.forecast(queries))
        _assert_covered(quote, usage, Resource.FORECAST_TOKENS, Resource.FORECAST_USD)
        assert not (forecaster.refreshes and any(quote.values())), "refreshing must be free"

    def test_the_same_lessons_give_the_same_forecasts(self) -> None:
        """Observations alone decide; asking changes nothing."""
        queries, lessons = self._queries(), self._lessons(self.taught)
        first, second = self.make(), self.make()
        first.learn(lessons)
        second.forecast(queries)
        second.learn(lessons)
        answers = _without_usage(first.forecast(queries))
        assert _without_usage(second.forecast(queries)) == answers
        assert _without_usage(first.forecast(queries)) == answers

    def test_a_kernel_ties_with_itself(self) -> None:
        """The same canonical source is a tie, and runs as its anchor does."""
        seed = fakes.synthetic_problem().seed_source
        copy = fakes.make_kernel(f"// the same\n{seed}")
        for is_measured in (True, False):
            query = fakes.make_query(copy).model_copy(update={"anchor_measured": is_measured})
            (forecast,) = consult(self.make(), [query])
            density = forecast.distribution
            tie = density.cdf(math.log2(1.03)) - density.cdf(math.log2(0.97))
            assert tie >= 0.98, f"P(tie) is {tie:.3f}"
            assert forecast.p_ok == 1.0, "an anchor is known to run"

    def test_a_swapped_pair_mirrors_the_forecast(self) -> None:
        """If neither kernel was measured, a -> b at 2x is b -> a at 0.5x, with the same chance."""
        forecaster = self.make()
        for one, other in pairwise(self._unmeasured()):
            there, back = consult(forecaster, [self._pair(one, other), self._pair(other, one)])
            levels = np.linspace(0.05, 0.95, 19)
            opposite = back.distribution.mirrored().quantile(levels)
            assert np.allclose(there.distribution.quantile(levels), opposite, atol=1e-6)

    def test_chains_of_forecasts_agree(self) -> None:
        """The means of a -> b and b -> c add up to that of a -> c, within their widths."""
        first, second, third = self._unmeasured()[:3]
        pairs = ((first, second), (second, third), (first, third))
        forecasts = consult(self.make(), [self._pair(*pair) for pair in pairs])
        means = [forecast.distribution.mean() for forecast in forecasts]
        widths = [forecast.distribution.std() for forecast in forecasts]
        gap = abs(means[0] + means[1] - means[2])
        assert gap <= math.hypot(*widths), f"means {means}, widths {widths}"

    def test_no_forecast_contradicts_evidence(self) -> None:
        """What compiled has no compile error; what did not compile does not run."""
        (query,) = [fakes.make_query(kernel) for kernel in self._unmeasured()[:1]]
        compiled = types.Evidence(kernel_id=query.candidate.id, toolchain="t")
        refused = types.Failure(kind=FailureKind.COMPILE_ERROR, message="error: no")
        broken = compiled.model_copy(update={"failure": refused})
        asked = [query.model_copy(update={"evidence": one}) for one in (compiled, broken)]
        runs, fails = consult(self.make(), asked)
        assert not runs.failure.get(FailureKind.COMPILE_ERROR)
        assert fails.p_ok == 0.0

    def test_what_is_like_nothing_measured_is_wide(self) -> None:
        """A forecast that is a prior has a wide 80% interval: it covers 0.85x to 1.18x."""
        strange = fakes.make_kernel("void zzyzx(qux q) { frob(q, 17); }\n")
        pair = self._pair(strange, fakes.make_kernel("void plugh(qux q) { xyzzy(q); }\n"))
        for forecast in consult(self.make(), [pair, fakes.make_query(strange)]):
            low, high = forecast.distribution.interval(0.8)
            assert not forecast.is_prior or high - low >= 2.0 * math.log2(1.18)

    def _unmeasured(self) -> list[types.Kernel]:
        problem = fakes.synthetic_problem()
        written = fakes.make_kernel(problem.seed_source.replace("int64_t i", "long i"))
        return [fakes.make_kernel(problem.seed_source), written, *fakes.synthetic_kernels(3, 7)]

    def _pair(self, candidate: types.Kernel, anchor: types.Kernel) -> types.Query:
        """Return the question about two kernels of which none was measured."""
        unknown = {"anchor": anchor, "anchor_runtime_s": math.nan, "anchor_measured": False}
        return fakes.make_query(candidate).model_copy(update=unknown)

    def _queries(self) -> list[types.Query]:
        """Return candidates with and without parameters, against different anchors."""
        problem = fakes.synthetic_problem()
        written = fakes.make_kernel(problem.seed_source.replace("int64_t i", "long i"))
        kernels = [written, *fakes.synthetic_kernels(4, seed=7)]
        return [
            fakes.make_query(kernel, problem, 0.5 * index) for index, kernel in enumerate(kernels)
        ]

    def _lessons(self, count: int) -> list[types.Observation]:
        problem, backend = fakes.synthetic_problem(), fakes.SyntheticBackend()
        return [
            types.Observation(kernel=kernel, measurement=backend.measure(problem, kernel, 0))
            for kernel in fakes.synthetic_kernels(count, seed=8)
        ]

    def _assert_valid(self, forecaster: Forecaster) -> None:
        queries = self._queries()
        for query, forecast in zip(queries, forecaster.forecast(queries), strict=True):
            assert forecast.forecaster == forecaster.name
            assert forecast.anchor_id == query.anchor.id
            assert forecast.anchor_log2_speedup == query.anchor_log2_speedup
            chances = list(forecast.failure.values())
            assert all(0.0 <= chance <= 1.0 for chance in chances), f"{forecast.failure}"
            assert sum(chances) <= 1.0 + 1e-9, f"{forecast.failure}"
            assert math.isfinite(forecast.against_reference().mean())


def _without_usage(forecasts: Sequence[types.Forecast]) -> list[types.Forecast]:
    """Return the forecasts without their seconds, which differ between equal answers."""
    return [forecast.model_copy(update={"usage": types.Usage()}) for forecast in forecasts]


class PolicyContract:
    """Tests of a `Policy`; a baseline that ignores forecasts sets `heeds` to False."""

    heeds: bool = True

    def make(self) -> Policy:
        """Return the policy under test."""
        raise NotImplementedError

    def test_decides_on_members_of_the_pool_only(self) -> None:
        """Every decision is on a candidate of the pool; an empty pool has no decision."""
        policy = self.make()
        assert policy.pool_size >= 1
        for exhausted in (False, True):
            view = fakes.make_view(free_slots=2, proposals_exhausted=exhausted)
            for count in (1, policy.pool_size, 2 * policy.pool_size):
                pool = _pool(count)
                assert set(policy.decide(pool, view)) <= {candidate.kernel_id for candidate in pool}
            assert self.make().decide([], view) == {}

    def test_a_full_pool_and_a_free_slot_lead_to_a_decision(self) -> None:
        """The loop asks for no more than `pool_size` candidates, so a full pool must move on.

        It does so however long ago the last new best was.
        """
        policy = self.make()
        pool = _pool(policy.pool_size)
        assert policy.decide(pool, fakes.make_view(free_slots=1))
        for stale in (0, 30, 10_000):
            view = fakes.make_view(stale=stale, measured=stale, free_slots=2)
            decided = policy.decide(pool, view)
            assert decided
            assert set(decided) <= {candidate.kernel_id for candidate in pool}

    def test_no_candidate_waits_for_ever(self) -> None:
        """Once proposals are exhausted, each call with a free slot decides something."""
        for forecasts in (True, False):
            policy = self.make()
            pool = _pool(policy.pool_size, forecasts=forecasts)
            measured = 0
            while pool:
                view = fakes.make_view(proposals_exhausted=True, measured=measured)
                decided = policy.decide(pool, view)
                assert decided, f"{len(pool)} candidates wait and a slot is free"
                measured += _measurements(decided)
                pool = [candidate for candidate in pool if candidate.kernel_id not in decided]

    def test_the_same_view_leads_to_the_same_decisions(self) -> None:
        """Decisions depend on pool and view alone, and have a reason."""
        policy = self.make()
        pool, view = _pool(policy.pool_size), fakes.make_view(free_slots=3)
        first = policy.decide(pool, view)
        policy.decide(_pool(3), fakes.make_view(seed=9))
        assert policy.decide(pool, view) == first == self.make().decide(pool, view)
        assert all(decision.reason for decision in first.values())

    def test_what_was_objected_to_is_dropped(self) -> None:
        """An objection that audits support is not measured, except by an audit."""
        policy = self.make()
        size = max(policy.pool_size, 2)
        pool = _pool(size)
        pool[: size // 2] = [_objected(candidate) for candidate in pool[: size // 2]]
        view = fakes.make_view(proposals_exhausted=True, audits=_clean_audits())
        decided = policy.decide(pool, view)
        for candidate in pool[: size // 2] if self.heeds else ():
            assert decided[candidate.kernel_id].action in ("drop", "audit")

    def test_doubtful_candidates_are_not_trusted(self) -> None:
        """Not without a forecast, nor with an objection, nor after a chain of forecast kernels."""
        policy, audits = self.make(), _clean_audits()
        # Surely a little slower than the incumbent, hence good enough as parents.
        close = [fakes.make_candidate(index, -0.15, 0.02) for index in range(policy.pool_size)]
        objected = [_objected(candidate) for candidate in close]
        chained = [candidate.model_copy(update={"chain_std": 3.0}) for candidate in close]
        unforecast = _pool(policy.pool_size, forecasts=False)
        for pool, view in (
            (unforecast, fakes.make_view(free_slots=4, proposals_exhausted=True)),
            (objected, fakes.make_view(free_slots=2)),
            (objected, fakes.make_view(free_slots=2, audits=audits)),
            (chained, fakes.make_view(free_slots=2, audits=audits)),
        ):
            decided = policy.decide(pool, view)
            assert all(decision.action != "trust" for decision in decided.values())

    def test_no_forecaster_can_close_the_search(self) -> None:
        """A full pool of several has a measurement, even if all are ruled out or objected to.

        A policy that judges candidates one by one may rule out each of them.
        """
        policy = self.make()
        if policy.pool_size == 1:
            return
        hopeless = [fakes.make_candidate(index, -9.0, 0.01) for index in range(policy.pool_size)]
        for pool in (hopeless, [_objected(candidate) for candidate in hopeless]):
            for measured in range(5):
                view = fakes.make_view(measured=measured, audits=_clean_audits())
                assert _measurements(policy.decide(pool, view))


def _pool(count: int, *, forecasts: bool = True) -> list[Candidate]:
    means = np.random.default_rng(0).normal(0.0, 1.0, size=count)
    widths = np.resize([0.05, 0.3, 1.0], count)
    return [
        fakes.make_candidate(index, float(mean) if forecasts else None, float(width))
        for index, (mean, width) in enumerate(zip(means, widths, strict=True))
    ]


def _objected(candidate: Candidate) -> Candidate:
    assert candidate.forecast is not None
    forecast = candidate.forecast.model_copy(update={"objection": "nothing has changed"})
    return candidate.model_copy(update={"forecast": forecast})


def _clean_audits() -> tuple[types.Audit, ...]:
    """Return enough audits to believe the forecasts: no unlikely kernel was a new best."""
    return tuple(
        types.Audit(p_new_best=0.05 * (index % 10), new_best=False) for index in range(300)
    )


def _measurements(decided: dict[str, types.Decision]) -> int:
    return sum(decision.action in ("measure", "audit") for decision in decided.values())


class StrategyContract:
    """Tests of a `Strategy`."""

    def make(self) -> Strategy:
        """Return the strategy under test."""
        raise NotImplementedError

    def test_chooses_distinct_members_of_the_archive(self) -> None:
        """There is at least one parent, at most `count`, all different and from the archive."""
        for size in (1, 2, 30):
            archive = _archive(size)
            members = {node.kernel_id for node in archive}
            for count in range(1, size + 3):
                for seed in range(5):
                    for stale in _STALE:
                        chosen = self.make().select(archive, count, seed, stale=stale)
                        assert 1 <= len(chosen) <= count
                        assert set(chosen) <= members
                        assert len(set(chosen)) == len(chosen), f"twice the same: {chosen}"

    def test_the_seed_decides_and_the_order_of_the_archive_does_not(self) -> None:
        """Same archive, seed and `stale`, same parents, whatever was asked before."""
        archive = _archive(30)
        shuffled = [archive[i] for i in np.random.default_rng(1).permutation(len(archive))]
        strategy = self.make()
        for seed in range(10):
            for stale in _STALE:
                first = self.make().select(archive, 5, seed, stale=stale)
                assert strategy.select(archive, 5, seed, stale=stale) == first
                assert strategy.select(shuffled, 5, seed, stale=stale) == first

    def test_a_lost_ancestor_does_no_harm(self) -> None:
        """Kernels whose parents were evicted can still be chosen."""
        orphans = [node for node in _archive(30) if node.origin != "seed"][5:]
        for stale in _STALE:
            assert self.make().select(orphans, 3, 0, stale=stale)


def _archive(size: int) -> list[types.Node]:
    """Return a seed and its descendants: ties, unsure forecasts, several kinds of kernels."""
    rng = np.random.default_rng(0)
    seed = types.content_hash("node 0")
    nodes = [types.Node(kernel_id=seed, parent_id=None, log2_speedup=0.0, origin="seed")]
    for index in range(1, size):
        parent = nodes[int(rng.integers(len(nodes)))]
        is_forecast = index % 5 == 0
        nodes.append(
            types.Node(
                kernel_id=types.content_hash(f"node {index}"),
                parent_id=parent.kernel_id,
                log2_speedup=float(rng.integers(-2, 3)) / 2,
                origin="forecast" if is_forecast else "measured",
                visits=int(rng.integers(4)),
                std_log2=0.1 if is_forecast else 0.0,
                behaviour=(int(rng.integers(3)), int(rng.integers(2))),
            )
        )
    return nodes


class BackendContract:
    """Tests of a `Backend`; three of them measure, so choose a problem that is quick.

    Without a device, the contract holds up to the launch: measuring a kernel that compiles raises
    `NoDevice`.
    """

    tie_log2: float = 0.3  # how far from 0 the reference's log2 speedup over itself may be

    def make(self) -> Backend:
        """Return the backend under test; each test closes the one it made."""
        raise NotImplementedError

    def problem(self) -> types.Problem:
        """Return a problem in a language of the backend; by default y = 2 x in C++."""
        # Half a millisecond per call: a shorter one depends on the clock too much.
        case = types.Case(name="main", dimensions={"N": 1 << 20})
        return fakes.synthetic_problem().model_copy(update={"cases": (case,)})

    def launches(self) -> bool:
        """Return True if the backend's device is in this machine."""
        return True

    def broken_source(self) -> str:
        """Return source that does not compile."""
        return "this is no program"

    def wrong_source(self) -> str:
        """Return source that compiles and computes something else."""
        return self.problem().seed_source.replace("2.0f", "3.0f")

    def test_the_reference_ties_with_itself(self) -> None:
        """A right kernel has a timing of every timed case; the seed kernel's is about 0."""
        measurement = self._launch(self.problem().seed_source)
        if measurement is None:
            return
        timing = measurement.timing
        assert timing is not None, f"the seed kernel fails: {measurement.failure}"
        assert timing.low <= timing.log2_speedup <= timing.high
        # What a starved machine leaves unresolved has a wide interval, which holds the truth.
        low = high = timing.log2_speedup
        if not timing.resolved:
            low, high = timing.low, timing.high
        assert low - self.tie_log2 <= 0.0 <= high + self.tie_log2, f"2^{low} to 2^{high} of itself"
        assert timing.runtime_s > 0.0
        assert timing.reference_runtime_s > 0.0
        names = [case.name for case in self.problem().timed_cases]
        assert [case.case for case in timing.cases] == names
        assert all(case.log2_ratios for case in timing.cases)

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
        measurement = self._launch(self.wrong_source())
        if measurement is not None:
            assert measurement.failure is not None
            assert measurement.failure.kind is FailureKind.WRONG_RESULT

    def test_effort_and_sandbox_are_recorded(self) -> None:
        """A measurement names its effort and the sandbox of the kernel."""
        problem, kernel = self.problem(), self._kernel(self.broken_source())
        with closing(self.make()) as backend:
            assert backend.measure(problem, kernel, seed=4).effort == "screening"
            measurement = backend.measure(problem, kernel, seed=4, effort="normal")
            assert measurement.effort == "normal"
            assert measurement.sandbox == getattr(backend, "level", measurement.sandbox)

    def test_evidence_names_its_kernel(self) -> None:
        """A kernel that compiles has evidence without a failure."""
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

    def _kernel(self, source: str) -> types.Kernel:
        return as_kernel(source, self.problem().language)

    def _launch(self, source: str) -> types.Measurement | None:
        """Measure a kernel that compiles; return None if there is no device, as promised."""
        problem, kernel = self.problem(), self._kernel(source)
        with closing(self.make()) as backend:
            if not self.launches():
                with _raises(NoDevice):
                    backend.measure(problem, kernel, seed=1)
                return None
            measurement = backend.measure(problem, kernel, seed=1)
            self._assert_named(backend, kernel, measurement)
        return measurement

    def _assert_named(
        self, backend: Backend, kernel: types.Kernel, measurement: types.Measurement
    ) -> None:
        assert measurement.kernel_id == kernel.id
        assert measurement.problem_id == self.problem().id
        assert measurement.device_id == backend.device.id
        assert measurement.toolchain == backend.toolchain
        if self.launches():
            quote = backend.quote(self.problem())
            assert quote[Resource.MEASUREMENTS] == 1
            assert 0.0 <= measurement.device_s <= quote[Resource.DEVICE_S]


class FarmContract:
    """Tests of a `Farm`."""

    slots: int = 2

    def make(self, backend: Backend, slots: int) -> Farm:
        """Return the farm under test with this backend."""
        raise NotImplementedError

    def test_as_many_jobs_run_at_once_as_there_are_slots(self) -> None:
        """Every slot is used and none is shared."""
        with _folder() as folder:
            backend = fakes.RendezvousBackend(folder, parties=self.slots)
            with closing(self.make(backend, self.slots)) as farm:
                assert farm.slots == self.slots
                for future in self._submit(farm, 3 * self.slots):
                    future.result(timeout=_HANG_S)
            assert backend.most_together() == self.slots

    def test_a_result_belongs_to_its_job(self) -> None:
        """Each future holds the measurement of the kernel that was submitted with it."""
        backend, problem = fakes.SyntheticBackend(), fakes.synthetic_problem()
        with closing(self.make(backend, self.slots)) as farm:
            results = [future.result(timeout=_HANG_S) for future in self._submit(farm, 8)]
        kernels = fakes.synthetic_kernels(8)
        made = [backend.measure(problem, kernel, 0) for kernel in kernels]
        assert [result.model_copy(update={"slot": ""}) for result in results] == made

    def test_speaks_for_its_backend(self) -> None:
        """Device, toolchain, quote and evidence are the backend's."""
        backend, problem = fakes.SyntheticBackend(), fakes.synthetic_problem()
        (kernel,) = fakes.synthetic_kernels(1)
        with closing(self.make(backend, self.slots)) as farm:
            assert farm.device == backend.device
            assert farm.toolchain == backend.toolchain
            assert farm.quote(problem) == backend.quote(problem)
            evidence = farm.inspect(problem, kernel).result(timeout=_HANG_S)
            assert evidence == backend.inspect(problem, kernel)

    def test_a_broken_set_up_is_raised_by_the_future(self) -> None:
        """`submit` does not raise it, and it is no failed kernel."""
        with closing(self.make(fakes.BrokenBackend(), self.slots)) as farm:
            (future,) = self._submit(farm, 1)
            with _raises(SetupError):
                future.result(timeout=_HANG_S)

    def test_closing_leaves_nothing_under_way(self) -> None:
        """Jobs that have not begun are cancelled; closing again does no harm."""
        with _folder() as folder:
            farm = self.make(fakes.RendezvousBackend(folder, parties=2), 1)
            futures = self._submit(farm, 5)
            closing = Thread(target=farm.close)
            closing.start()
            with _raises(CancelledError):
                futures[-1].result(timeout=_HANG_S)
            (folder / "test.arrived").write_text("1")
            closing.join()
            farm.close()
            assert all(future.done() for future in futures)

    def test_a_cancelled_job_is_a_loss(self) -> None:
        """A job that waits is withdrawn; the other jobs are measured."""
        with _folder() as folder:
            backend = fakes.RendezvousBackend(folder, parties=2)
            with closing(self.make(backend, 1)) as farm:
                futures = self._submit(farm, 4)
                farm.cancel("search-2")
                (folder / "test.arrived").write_text("1")
                results = [future.result(timeout=_HANG_S) for future in futures]
            assert [isinstance(result, types.Loss) for result in results] == [0, 0, 1, 0]

    def test_no_job_of_an_unknown_run_is_adopted(self) -> None:
        """A run without surviving jobs has none to take over."""
        with closing(self.make(fakes.SyntheticBackend(), 1)) as farm:
            assert farm.adopt("never ran") == {}

    def _submit(self, farm: Farm, count: int) -> list[Future[types.Measurement | types.Loss]]:
        problem = fakes.synthetic_problem()
        jobs = [
            types.Job(entry=f"search-{index}", purpose="search", kernel=kernel, seed=index)
            for index, kernel in enumerate(fakes.synthetic_kernels(count))
        ]
        return [farm.submit(problem, job) for job in jobs]


class StoreContract:
    """Tests of a `Store` on some database."""

    def make(self, folder: Path) -> Store:
        """Open the store of this folder; create it on the first call."""
        raise NotImplementedError

    def damage(self, folder: Path) -> bool:
        """Change an event's payload behind the store's back; return False if that is impossible."""
        del folder
        return False

    def test_the_state_is_the_fold_of_the_events(self) -> None:
        """Events come back in order, and the state is their fold."""
        recorded, _ = fakes.example_history()
        with self._run() as (_, run):
            expected = State()
            for event in recorded:
                expected.apply(event)
            assert run.state == expected
            assert run.replay() == expected
            assert list(run.events()) == recorded
            proposed = [event for event in recorded if isinstance(event, events.Proposed)]
            assert list(run.events("proposed")) == proposed

    def test_opening_again_is_replaying(self) -> None:
        """A run that was closed continues from the same state."""
        with _folder() as folder:
            with self.make(folder) as store:
                run = self._record(store)
            with self.make(folder) as store:
                again = store.open_run(run.name)
                assert again.state == run.state
                again.append([events.Voided(entry="search-5")])
                assert again.replay() == again.state
                assert [info.name for info in store.runs()] == [run.name]

    def test_a_second_writer_is_refused(self) -> None:
        """Of two that continue from the same event, the later one gets an error."""
        with self._run() as (store, run):
            other = store.open_run(run.name)
            run.append([events.Reserved(entry="mine", spend={Resource.DEVICE_S: 1.0})])
            with _raises(StoreError):
                other.append([events.Reserved(entry="theirs", spend={Resource.DEVICE_S: 1.0})])
            assert run.replay() == run.state

    def test_caps_are_not_passed(self) -> None:
        """Spending and reservations together stay within the cap."""
        with self._run() as (_, run):
            for resource in (Resource.MEASUREMENTS, Resource.DEVICE_S):
                left = run.state.left(resource)
                assert 0.0 < left < math.inf
                before, state = run.ledger(), run.state.model_copy(deep=True)
                with _raises(BudgetExceeded):
                    run.append([events.Reserved(entry=resource, spend={resource: left + 0.1})])
                assert run.ledger() == before
                assert run.state == state == run.replay()
                run.append([events.Reserved(entry=resource, spend={resource: left})])
                with _raises(BudgetExceeded):
                    run.append([events.Reserved(entry="one more", spend={resource: 0.1})])
                run.append([events.Voided(entry=resource)])
                assert math.isclose(run.state.left(resource), left)

    def test_a_refused_batch_leaves_nothing(self) -> None:
        """Events and their kernels are written all together or not at all."""
        (kernel,) = fakes.synthetic_kernels(1, seed=99)
        batch: list[events.Event] = [
            events.Proposed(kernel_id=kernel.id, parent_id="seed", proposer="fake", request=7),
            events.Reserved(entry="too much", spend={Resource.MEASUREMENTS: 1_000.0}),
        ]
        with self._run() as (store, run):
            with _raises(BudgetExceeded):
                run.append(batch, [kernel])
            assert run.seen([kernel.id]) == set()
            assert run.replay() == run.state
            with _raises(StoreError):
                store.kernel(kernel.id)

    def test_an_entry_is_closed_once(self) -> None:
        """Closing an entry that is not open is refused, and so is reusing an entry's name."""
        spend: types.Spend = {Resource.DEVICE_S: 0.5}
        refused: list[list[events.Event]] = [
            [events.Settled(entry="search-1", spend=spend)],
            [events.Voided(entry="search-1")],
            [events.Settled(entry="search-2", spend=spend)],
            [events.Voided(entry="never reserved")],
            [events.Reserved(entry="search-1", spend=spend)],
            [events.Voided(entry="search-5"), events.Voided(entry="search-5")],
            [events.Settled(entry="search-5", spend={Resource.FORECAST_USD: 1.0})],
        ]
        with self._run() as (_, run):
            before = run.ledger()
            for batch in refused:
                with _raises(StoreError):
                    run.append(batch)
            assert run.ledger() == before
            assert run.replay() == run.state

    def test_the_ledger_agrees_with_the_state(self) -> None:
        """The database's accounts are the sums of the state."""
        with self._run() as (_, run):
            ledger, caps = run.ledger(), run.state.budget.caps()
            for resource in Resource:
                account = ledger[resource]
                assert account.cap == caps.get(resource)
                assert math.isclose(account.spent, run.state.spent.get(resource, 0.0))
                assert math.isclose(account.reserved, run.state.reserved(resource), abs_tol=1e-9)

    def test_kernels_come_back_as_they_were(self) -> None:
        """Source and parameters are exact; an unknown kernel is an error."""
        odd = fakes.make_kernel("// naïve ∑\r\nvoid kernel() {}\n", {"A": 1, "B": 0.5, "C": "x"})
        _, kernels = fakes.example_history()
        with self._run() as (store, run):
            run.append([events.Voided(entry="search-5")], [odd])
            assert [store.kernel(kernel.id) for kernel in [*kernels, odd]] == [*kernels, odd]
            with _raises(StoreError):
                store.kernel("0" * 32)

    def test_a_measurement_is_made_once(self) -> None:
        """A search's measurement is found by all that it depends on, by any run."""
        recorded, _ = fakes.example_history()
        with self._run() as (store, _):
            for event in recorded:
                if not isinstance(event, events.Measured):
                    continue
                made = event.measurement
                key = types.CacheKey.of(made)
                known = store.cached_measurement(key)
                assert known == (None if event.purpose == "reference" else made)
                for name in key._fields:
                    other: dict[str, Any] = {name: "other"}
                    assert store.cached_measurement(key._replace(**other)) is None

    def test_proposed_kernels_are_seen(self) -> None:
        """`seen` returns the kernels that were proposed in this run."""
        _, (_, *kernels) = fakes.example_history()
        keys = {kernel.id for kernel in kernels}
        with self._run() as (store, run):
            assert run.seen([*keys, "0" * 32]) == keys
            assert run.seen([]) == set()
            assert store.create_run("another").seen(keys) == set()

    def test_runs_are_known_by_name(self) -> None:
        """A name that is taken and an unknown one are errors."""
        with self._run() as (store, run):
            with _raises(StoreError):
                store.create_run(run.name)
            with _raises(StoreError):
                store.open_run("no such run")

    def test_damage_is_found(self) -> None:
        """A changed event is never folded."""
        with _folder() as folder:
            with self.make(folder) as store:
                name = self._record(store).name
            if not self.damage(folder):
                return
            with self.make(folder) as store, _raises(StoreError):
                store.open_run(name)

    @contextmanager
    def _run(self) -> Iterator[tuple[Store, Run]]:
        with _folder() as folder, self.make(folder) as store:
            yield store, self._record(store)

    def _record(self, store: Store) -> Run:
        recorded, kernels = fakes.example_history()
        run = store.create_run("contract")
        run.append(recorded[:1], kernels)
        run.append(recorded[1:])
        return run
