"""No forecast contradicts what is known: property tests over random forecasts and evidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.certainty import consult
from kernelcast.dataset.trials import Trial, Trials
from kernelcast.distribution import Distribution
from kernelcast.errors import SetupError
from kernelcast.events import Forecasted, RunSpec
from kernelcast.farm.local import LocalFarm
from kernelcast.forecasters.cascade import CascadeForecaster
from kernelcast.forecasters.critic import CriticForecaster
from kernelcast.forecasters.recalibrate import RecalibratedForecaster
from kernelcast.forecasters.roofline import RooflineForecaster
from kernelcast.forecasters.trees import TreesForecaster
from kernelcast.judge.evaluation import ask, ask_at_once, draw
from kernelcast.parts import Parts
from kernelcast.policies import Selective
from kernelcast.proposers.template import TemplateProposer
from kernelcast.search import Search
from kernelcast.store import Store
from kernelcast.strategies import Puct
from kernelcast.testing import (
    SyntheticBackend,
    make_kernel,
    make_query,
    synthetic_kernels,
    synthetic_problem,
)
from kernelcast.types import (
    SMALLEST_CLAIM_LOG2,
    Budget,
    Evidence,
    Failure,
    FailureKind,
    Forecast,
    Kernel,
    Query,
    Usage,
)

PROBLEM = synthetic_problem()
SEED = PROBLEM.seed_source
OTHER = make_kernel(SEED.replace("int64_t i", "long i"))
COMPILES = Evidence(kernel_id="k", toolchain="t")
BROKEN = COMPILES.model_copy(
    update={
        "failure": Failure(
            kind=FailureKind.COMPILE_ERROR, message="In k:\nk.cu:1: error: no\n1 error generated"
        )
    }
)
FORECASTERS = (
    RooflineForecaster,
    CriticForecaster,
    TreesForecaster,
    CascadeForecaster,
    RecalibratedForecaster,
)


class Opinion(RooflineForecaster):
    """Says the same of every kernel, and counts what it is asked."""

    def __init__(self, forecast: Forecast) -> None:
        super().__init__()
        object.__setattr__(self, "said", forecast)
        object.__setattr__(self, "asked", [])

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        self.asked.extend(queries)  # type: ignore[attr-defined]
        return [self.said] * len(queries)  # type: ignore[attr-defined]


def opinion(chances: Sequence[float]) -> Forecast:
    """A forecast whose kinds of failure and success share these weights."""
    total = sum(chances) or 1.0
    return Forecast(
        forecaster="any",
        anchor_id="a",
        anchor_log2_speedup=0.0,
        distribution=Distribution.normal(1.0, 0.5),
        failure={kind: each / total for kind, each in zip(FailureKind, chances, strict=False)},
    )


def query(candidate: Kernel = OTHER, evidence: Evidence | None = None) -> Query:
    return make_query(candidate, PROBLEM, 0.5).model_copy(update={"evidence": evidence})


weights = st.lists(st.floats(0.0, 1.0), min_size=6, max_size=6)
evidence = st.sampled_from([None, COMPILES, BROKEN])


@given(weights, evidence)
def test_a_forecast_agrees_with_its_evidence(chances: list[float], known: Evidence | None) -> None:
    before = opinion(chances)
    after = before.conditioned_on(known)
    assert after.p_ok + sum(after.failure.values()) == pytest.approx(1.0)
    assert all(0.0 <= chance <= 1.0 + 1e-12 for chance in after.failure.values())
    again = after.conditioned_on(known)
    assert dict(again.failure) == pytest.approx(dict(after.failure))
    compile_error = after.failure.get(FailureKind.COMPILE_ERROR, 0.0)
    if known is None:
        assert after == before
    elif known is BROKEN:
        assert (compile_error, after.p_ok) == (1.0, 0.0)
    else:
        assert compile_error == 0.0
        crash = before.failure[FailureKind.CRASH]
        assert after.failure.get(FailureKind.CRASH, 0.0) * before.p_ok == pytest.approx(
            crash * after.p_ok, abs=1e-9
        )


@given(weights, st.lists(evidence, max_size=5))
def test_a_forecaster_is_asked_about_nothing_that_is_certain(
    chances: list[float], known: list[Evidence | None]
) -> None:
    forecaster = Opinion(opinion(chances))
    queries = [query(evidence=each) for each in known]
    answers = consult(forecaster, queries)
    assert [each.p_ok == 0.0 for each in answers if each.rationale] == [
        True for each in known if each is BROKEN
    ]
    assert len(forecaster.asked) == sum(each is not BROKEN for each in known)  # type: ignore[attr-defined]
    expected = [opinion(chances).conditioned_on(each) for each in known if each is not BROKEN]
    assert [each for each in answers if not each.rationale] == expected


@pytest.mark.parametrize("make", FORECASTERS)
def test_the_same_kernel_is_a_tie_by_definition(make: type) -> None:
    same = [
        SEED,
        f"// another author\n{SEED}",
        f"{SEED}static int never_called() {{ return 1; }}\n",
    ]
    for answer in consult(make(), [query(make_kernel(source)) for source in same]):
        assert answer.distribution.quantile(0.5) == pytest.approx(0.0)
        assert answer.p_ok == 1.0
        assert answer.chance_above(0.5 + SMALLEST_CLAIM_LOG2) == 0.0
        assert "nothing has changed" in answer.objection


@pytest.mark.parametrize("make", FORECASTERS)
def test_what_does_not_compile_has_no_other_outcome(make: type) -> None:
    answers = consult(make(), [query(evidence=BROKEN), query(evidence=COMPILES), query()])
    assert answers[0].failure == {FailureKind.COMPILE_ERROR: 1.0}
    assert answers[0].p_ok == 0.0
    assert answers[0].rationale == "it does not compile: k.cu:1: error: no"
    assert FailureKind.COMPILE_ERROR not in answers[1].failure
    assert answers[1].p_ok >= answers[2].p_ok


def test_other_parameters_or_texts_that_were_not_published_are_other_kernels() -> None:
    first, second = synthetic_kernels(2, seed=1)
    assert not consult(RooflineForecaster(), [query(first)])[0].objection
    one, other = (Kernel(id=name, language="cpp", source="") for name in "ab")
    nameless = query(one).model_copy(update={"anchor": other})
    assert not consult(RooflineForecaster(), [nameless])[0].objection
    tuned = [kernel.model_copy(update={"source": SEED}) for kernel in (first, second)]
    pair = query(tuned[0]).model_copy(update={"anchor": tuned[1]})
    assert not consult(RooflineForecaster(), [pair])[0].objection


class Partial(RooflineForecaster):
    """Calls its favourite far faster, and cannot be read about anything else."""

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        said = opinion((0.1, 0.1)).model_copy(
            update={"distribution": Distribution.normal(3.0, 0.1), "usage": Usage(input_tokens=7)}
        )
        return [
            said.model_copy(update={"unparsed": query.candidate.id != OTHER.id})
            for query in queries
        ]


def test_both_directions_are_asked_if_neither_kernel_was_measured() -> None:
    pair = query(OTHER).model_copy(update={"anchor_measured": False})
    there, back = consult(Partial(), [pair, pair.swapped()])
    assert there.distribution.mean() == pytest.approx(3.0, abs=0.01)
    assert back.distribution.mean() == pytest.approx(-3.0, abs=0.01)
    assert not there.unparsed
    assert there.usage.input_tokens == 14
    (measured,) = consult(Partial(), [pair.swapped().model_copy(update={"anchor_measured": True})])
    assert measured.distribution.mean() == pytest.approx(3.0, abs=0.01)


class Silent(RooflineForecaster):
    """Does not answer the last query."""

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        return super().forecast(queries)[:-1]


@pytest.mark.parametrize("measured", [True, False])
def test_a_forecaster_that_leaves_a_query_out_is_refused(measured: bool) -> None:
    pair = query(OTHER).model_copy(update={"anchor_measured": measured})
    with pytest.raises(SetupError, match="'roofline' answered 1 of 2 queries"):
        consult(Silent(), [pair, pair])


@given(st.lists(st.floats(-4, 4), min_size=2, max_size=2))
def test_a_forecaster_that_always_says_the_same_tells_nothing_of_a_pair(means: list[float]) -> None:
    said = opinion((0.1, 0.1)).model_copy(
        update={
            "distribution": Distribution.mixture(
                [Distribution.normal(mean, 0.3) for mean in means], (1, 2)
            )
        }
    )
    pair = query(OTHER).model_copy(update={"anchor_measured": False})
    (forecast,) = consult(Opinion(said), [pair])
    assert forecast.distribution.mean() == pytest.approx(0.0, abs=1e-6)


def test_a_search_asks_this_way(tmp_path: Path) -> None:
    """Every kernel that compiled, and only those, has no chance of a compile error."""
    found: dict[bool, list[Forecast]] = {}
    with Store.open(tmp_path / "runs.db") as store:
        for inspect in (False, True):
            parts = Parts(
                proposer=TemplateProposer(),
                forecaster=RooflineForecaster(),
                policy=Selective(pool_size=4),
                strategy=Puct(),
                farm=LocalFarm(SyntheticBackend()),
            )
            search = Search(PROBLEM, parts, store, spec=RunSpec(inspect=inspect), name=str(inspect))
            search.run(Budget(measurements=3))
            events = store.open_run(str(inspect)).events()
            found[inspect] = [each.forecast for each in events if isinstance(each, Forecasted)]
    assert all(FailureKind.COMPILE_ERROR in each.failure for each in found[False])
    assert found[True]
    assert not any(FailureKind.COMPILE_ERROR in each.failure for each in found[True])


@pytest.mark.parametrize("ordered", [False, True])
def test_an_evaluation_asks_this_way(ordered: bool) -> None:
    same = query(make_kernel(SEED))
    trial = Trial(same, ok=True, log2_speedup=0.0, observation=None)
    trials = Trials("a", "d", search=None, ordered=ordered, trials=(trial,))
    (answer,) = ask(RooflineForecaster, draw([trials]))
    assert "nothing has changed" in answer.forecast.objection
    (alone,) = ask_at_once([(RooflineForecaster(), same)], lambda: None)
    assert alone == answer.forecast
