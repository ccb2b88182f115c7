from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kernelcast.distribution import Distribution
from kernelcast.errors import SetupError
from kernelcast.forecasters.cascade import CascadeForecaster
from kernelcast.testing import (
    ForecasterContract,
    SyntheticBackend,
    make_query,
    synthetic_kernels,
    synthetic_problem,
)
from kernelcast.types import (
    Evidence,
    Failure,
    FailureKind,
    Forecast,
    Observation,
    Query,
    Resource,
    Spend,
    Usage,
)

KERNELS = synthetic_kernels(6, seed=1)


class TestCascade(ForecasterContract):
    def make(self) -> Any:
        return CascadeForecaster()


class Oracle:
    """A stage with one opinion, a price, and a memory of what it was asked."""

    concurrency = 1
    refreshes = False

    def __init__(self, name: str, mean: float, std: float, usd: float = 0.0) -> None:
        self.name = name
        self.mean, self.std, self.usd = mean, std, usd
        self.asked: list[str] = []
        self.taught = 0

    def quote(self, queries: Sequence[Query]) -> Spend:
        return {Resource.FORECAST_USD: self.usd * len(queries)}

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        self.asked += [query.candidate.id for query in queries]
        return [
            Forecast(
                forecaster=self.name,
                anchor_id=query.anchor.id,
                anchor_log2_speedup=query.anchor_log2_speedup,
                distribution=Distribution.normal(self.mean, self.std),
                usage=Usage(input_tokens=10, usd=self.usd),
            )
            for query in queries
        ]

    def learn(self, observations: Sequence[Observation]) -> None:
        self.taught += len(observations)


def query(incumbent_log2: float = 0.0) -> Query:
    return make_query(KERNELS[0]).model_copy(update={"incumbent_log2": incumbent_log2})


def asked(first: Oracle, second: Oracle, question: Query, **options: float) -> Forecast:
    (answer,) = CascadeForecaster([first, second], **options).forecast([question])
    return answer


def test_the_second_is_not_asked_where_it_cannot_change_the_decision() -> None:
    first, second = Oracle("first", mean=-4.0, std=0.3), Oracle("second", 1.0, 0.1)
    answer = asked(first, second, query())
    assert second.asked == []
    assert [stage.forecaster for stage in answer.stages] == ["first"]


def test_the_second_is_asked_where_the_first_is_in_doubt() -> None:
    first, second = Oracle("first", mean=-0.5, std=0.3), Oracle("second", -4.0, 0.1)
    answer = asked(first, second, query())
    assert second.asked == [KERNELS[0].id]
    assert [stage.forecaster for stage in answer.stages] == ["first", "second"]
    assert answer.usage.tokens == 20
    assert answer.distribution.mean() == pytest.approx(-2.25, abs=0.05)


def test_a_stage_must_be_worth_its_price() -> None:
    price = {"device_usd_per_hour": 3.6, "measurement_s": 1.0}  # a measurement is a tenth of a cent
    cheap, dear = Oracle("second", 0.0, 0.1, usd=1e-5), Oracle("second", 0.0, 0.1, usd=1e-2)
    asked(Oracle("first", -0.5, 0.3), cheap, query(), **price)
    asked(Oracle("first", -0.5, 0.3), dear, query(), **price)
    assert cheap.asked
    assert not dear.asked


def test_the_incumbent_sets_the_stakes() -> None:
    second = Oracle("second", 0.0, 0.1)
    asked(Oracle("first", 0.2, 0.3), second, query(incumbent_log2=4.0))
    assert second.asked == []


def test_a_changed_decision_is_told() -> None:
    hopeful = asked(Oracle("first", -0.8, 0.1), Oracle("second", 2.0, 0.1), query(), least_flip=0.0)
    assert [stage.changed for stage in hopeful.stages] == [False, True]
    assert hopeful.stages[1].p_new_best == pytest.approx(1.0)


def test_what_does_not_compile_or_is_the_anchor_needs_no_forecast() -> None:
    first, second = Oracle("first", 0.0, 0.3), Oracle("second", 0.0, 0.1)
    cascade = CascadeForecaster([first, second])
    failure = Failure(kind=FailureKind.COMPILE_ERROR, message="no")
    evidence = Evidence(kernel_id=KERNELS[0].id, toolchain="t", failure=failure)
    broken = query().model_copy(update={"evidence": evidence})
    same = query().model_copy(update={"candidate": query().anchor})
    answers = cascade.forecast([broken, same])
    assert not first.asked
    assert answers[0].p_ok == 0.0
    assert [bool(each.objection) for each in answers] == [False, True]
    assert answers[1].distribution.interval(0.9) == pytest.approx((0.0, 0.0), abs=0.05)


class Objector(Oracle):
    """Knows nothing, but for what it objects to."""

    def __init__(self, objection: str) -> None:
        super().__init__("objector", 0.0, 0.02 if objection else 2.0)
        self.objection = objection

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        told = super().forecast(queries)
        return [each.model_copy(update={"objection": self.objection}) for each in told]


def test_an_objection_is_handed_on_and_nobody_else_is_asked() -> None:
    other = Oracle("other", 1.0, 0.3)
    answer = asked(Objector("the same loops"), other, query())
    assert answer.objection == "the same loops"
    assert not other.asked
    (stage,) = answer.stages
    assert stage.objected
    assert stage.changed
    late = asked(other, Objector("the same loops"), query(), least_flip=0.0)
    assert late.objection == "the same loops"
    assert [stage.objected for stage in late.stages] == [False, True]


def test_an_objection_to_what_was_dropped_anyway_changes_nothing() -> None:
    answer = asked(Oracle("first", -4.0, 0.3), Objector("no"), query(), least_flip=0.0)
    assert [stage.changed for stage in answer.stages] == [False, False]


def test_who_knows_nothing_has_no_say_in_the_pool() -> None:
    other = Oracle("other", -3.0, 0.1)
    for answer in (
        asked(Objector(""), other, query()),
        asked(other, Objector(""), query(), least_flip=0.0),
    ):
        assert not answer.objection
        assert answer.distribution.mean() == pytest.approx(-3.0, abs=0.01)
        assert answer.distribution.std() == pytest.approx(0.1, abs=0.01)
        assert len(answer.stages) == 2
        assert not any(stage.objected for stage in answer.stages)
    (alone,) = CascadeForecaster([Objector("")]).forecast([query()])
    assert alone.distribution.std() > 1.5


def test_the_better_stage_gains_weight() -> None:
    good, bad = Oracle("good", 0.0, 0.1), Oracle("bad", 3.0, 0.1)
    cascade = CascadeForecaster([bad, good], least_flip=0.0)
    problem, backend = synthetic_problem(), SyntheticBackend()
    means = []
    for kernel in synthetic_kernels(40, seed=2):
        measurement = backend.measure(problem, kernel, 0)
        if measurement.log2_speedup is None:
            continue
        good.mean = measurement.log2_speedup
        question = make_query(kernel, problem)
        (answer,) = cascade.forecast([question])
        means.append(abs(answer.distribution.mean() - measurement.log2_speedup))
        if len(answer.stages) == 2:
            observation = Observation(kernel=kernel, measurement=measurement, forecast=answer)
            cascade.learn([observation])
    assert means[-1] < 0.3 * means[0]
    assert good.taught == bad.taught > 0


def test_quotes_cover_every_stage_and_stages_have_names_of_their_own() -> None:
    stages = [Oracle("llm", -0.5, 0.3, 0.25), Oracle("llm", 0.0, 0.3, 0.5)]
    cascade = CascadeForecaster(stages, device_usd_per_hour=1e5)
    assert cascade.quote([query()])[Resource.FORECAST_USD] == pytest.approx(0.75)
    (answer,) = cascade.forecast([query()])
    assert [stage.forecaster for stage in answer.stages] == ["llm", "llm 2"]


def test_a_stage_without_a_name_is_a_setup_error() -> None:
    with pytest.raises(SetupError, match="by its name and options"):
        CascadeForecaster([{"spread_log2": 1.0}])
