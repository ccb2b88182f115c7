from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from kernelcast.distribution import Distribution
from kernelcast.events import EVENT, Decided, RunEnded
from kernelcast.testing import (
    FAKE_DEVICE,
    SyntheticBackend,
    example_gate,
    example_history,
    example_tuning,
    make_candidate,
    make_estimate,
    synthetic_kernels,
    synthetic_problem,
)
from kernelcast.types import (
    Argument,
    Budget,
    Case,
    Decision,
    Evidence,
    Failure,
    FailureKind,
    Forecast,
    Hidden,
    Job,
    Kernel,
    Measurement,
    Problem,
    Rehearsal,
    Resource,
    Template,
    Usage,
    content_hash,
)

EVENTS = [*example_history()[0], *example_tuning(), *example_gate()]


def test_the_examples_have_every_kind_of_event() -> None:
    kinds = set(EVENT.json_schema()["discriminator"]["mapping"])
    assert {event.kind for event in EVENTS} == kinds


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_events_survive_json(event: RunEnded) -> None:
    assert EVENT.validate_json(event.model_dump_json()) == event


def test_an_infinite_score_survives_json() -> None:
    for score in (math.inf, -math.inf):
        event = Decided(
            kernel_id="k", decision=Decision(action="drop", score=score, reason="not forecast")
        )
        assert EVENT.validate_json(event.model_dump_json()) == event


def test_an_unknown_kind_of_event_is_refused() -> None:
    with pytest.raises(ValidationError):
        EVENT.validate_json('{"kind": "gossip"}')


def test_records_are_frozen_and_closed() -> None:
    budget = Budget(measurements=3)
    with pytest.raises(ValidationError, match="frozen"):
        budget.measurements = 4  # type: ignore[misc]
    with pytest.raises(ValidationError, match="extra"):
        Budget.model_validate({"measurments": 3})


def test_content_is_addressed_by_32_digits() -> None:
    assert len(content_hash("a")) == 32
    assert content_hash("a") == content_hash(b"a") != content_hash("b")


# ---------------------------------------------------------------------------------- problems


def problem_with(**changes: object) -> Problem:
    return synthetic_problem().model_copy(update=changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed_source": "void kernel() {}"},
        {"oracle_source": "def reference(): ..."},
        {"cases": (Case(name="main", dimensions={"N": 5}),)},
        {"entry": "other"},
        {"cases": (synthetic_problem().cases[0].model_copy(update={"scale": 16.0}),)},
        {"hidden": Hidden(dimensions={"N": (1, 9)})},
    ],
    ids=["seed_source", "oracle_source", "dimensions", "entry", "scale", "hidden"],
)
def test_what_a_time_depends_on_changes_the_problems_id(changes: dict[str, object]) -> None:
    assert problem_with(**changes).id != synthetic_problem().id


def test_what_a_time_does_not_depend_on_keeps_the_problems_id() -> None:
    assert problem_with(summary="other words", template=None).id == synthetic_problem().id


def test_untimed_cases_do_not_count() -> None:
    cases = (Case(name="a", dimensions={"N": 1}), Case(name="b", dimensions={"N": 2}, timed=False))
    assert [case.name for case in problem_with(cases=cases).timed_cases] == ["a"]


def test_an_extent_is_worked_out_from_the_dimensions() -> None:
    argument = Argument(name="x", role="input", dtype="float32", shape=("N", "N // 2 + K"))
    assert argument.extent({"N": 6, "K": 1}) == (6, 4)


def test_a_template_renders_its_admitted_configurations() -> None:
    template = Template(
        source="int x = A;\n",
        parameters={"A": (1, 2, 3), "B": ("f", "g")},
        constraints=("A > 1 or B == 'f'",),
    )
    configurations = list(template.configurations())
    assert len(configurations) == 5
    assert {"A": 1, "B": "g"} not in configurations
    assert template.render(configurations[0]) == "#define A 1\n#define B f\nint x = A;\n"


def test_cores_are_part_of_a_devices_id() -> None:
    assert FAKE_DEVICE.model_copy(update={"cores": 2}).id != FAKE_DEVICE.id


# ------------------------------------------------------------------ measurements and forecasts


def measured(kernel: Kernel) -> Measurement:
    return SyntheticBackend().measure(synthetic_problem(), kernel, 0)


def test_a_measurement_has_a_timing_or_a_failure() -> None:
    timed = measured(synthetic_kernels(1)[0])
    failure = Failure(kind=FailureKind.CRASH, message="gone")
    fields = {name: getattr(timed, name) for name in Measurement.model_fields}
    with pytest.raises(ValueError, match="either"):
        Measurement(**{**fields, "failure": failure})
    with pytest.raises(ValueError, match="either"):
        Measurement(**{**fields, "timing": None})
    assert timed.log2_speedup is not None
    assert timed.timing is not None
    assert timed.timing.speedup == pytest.approx(2.0**timed.log2_speedup)
    assert Measurement(**{**fields, "timing": None, "failure": failure}).log2_speedup is None


@pytest.mark.parametrize(
    ("low", "noise", "faster"),
    [
        (0.2, 0.1, True),
        (0.1, 0.1, False),
        (0.05, 0.1, False),
        (-0.1, 0.0, False),
        (math.log2(1.005), 0.0, False),  # less than 1% is no news, however quiet the machine
        (math.log2(1.02), 0.0, True),
        (0.9, None, False),  # an unknown noise may be larger
    ],
)
def test_faster_is_claimed_above_the_noise_and_above_a_percent(
    low: float, noise: float | None, faster: bool
) -> None:
    timed = measured(synthetic_kernels(1)[0])
    assert timed.timing is not None
    timing = timed.timing.model_copy(update={"low": low, "log2_speedup": 0.5, "high": 1.0})
    claimed = timed.model_copy(update={"timing": timing, "noise_log2": noise})
    assert claimed.faster is faster


def test_a_failed_kernel_is_not_faster() -> None:
    failure = Failure(kind=FailureKind.CRASH, message="gone")
    timed = measured(synthetic_kernels(1)[0])
    failed = timed.model_copy(update={"timing": None, "failure": failure})
    assert not failed.faster


def test_measurements_stored_before_there_was_effort_still_load() -> None:
    stored = measured(synthetic_kernels(1)[0]).model_dump(exclude={"effort", "conditions"})
    again = Measurement.model_validate(stored)
    assert (again.effort, again.conditions) == ("screening", ())


@pytest.mark.parametrize(
    ("purpose", "effort"),
    [("search", "screening"), ("reference", "normal"), ("confirmation", "final")],
)
def test_what_a_run_stands_on_is_measured_with_more_care(purpose: Any, effort: str) -> None:
    job = Job(entry="e", purpose=purpose, kernel=synthetic_kernels(1)[0], seed=1)
    assert job.effort == effort


def test_a_forecast_is_moved_from_its_anchor_to_the_reference() -> None:
    forecast = Forecast(
        forecaster="fake",
        anchor_id="a",
        anchor_log2_speedup=1.5,
        distribution=Distribution.normal(0.25, 0.1),
    )
    assert forecast.against_reference().mean() == pytest.approx(1.75)


def test_the_chance_to_be_right_is_what_failures_leave() -> None:
    forecast = make_candidate(0, 0.0, p_fail=0.3).forecast
    assert forecast is not None
    assert forecast.p_ok == pytest.approx(0.7)
    hopeless = {FailureKind.CRASH: 0.6, FailureKind.TIMEOUT: 0.6}
    assert forecast.model_copy(update={"failure": hopeless}).p_ok == 0.0


def test_usage_counts_tokens_both_ways() -> None:
    assert Usage(input_tokens=3, output_tokens=4).tokens == 7


# ------------------------------------------------------------------------------------ budget


def test_a_budget_caps_what_it_names() -> None:
    budget = Budget(measurements=5, forecast_usd=0.0, candidates=100)
    assert budget.caps() == {Resource.MEASUREMENTS: 5.0, Resource.FORECAST_USD: 0.0}
    assert Budget().caps() == {}


def test_a_budget_is_not_negative() -> None:
    with pytest.raises(ValidationError):
        Budget(measurements=-1)


def test_what_several_answers_cost_is_a_sum_and_unknown_if_one_is() -> None:
    known = Usage(input_tokens=3, output_tokens=1, usd=0.5, seconds=2.0)
    assert Usage.total([]) == Usage()
    assert Usage.total([known, known]) == Usage(
        input_tokens=6, output_tokens=2, usd=1.0, seconds=4.0
    )
    assert Usage.total([known, known.model_copy(update={"unknown": True})]).unknown


@pytest.mark.parametrize(
    "change",
    [
        {"registers": 64},
        {"shared_bytes": 4096},
        {"launches": 2},
        {"code_bytes": 900},
        {"instructions": {"total": 100, "float": 50, "load_global": 5}},
        {"instructions": {"total": 100, "mma": 25, "float": 15, "load_global": 20}},
    ],
)
def test_kernels_of_another_kind_live_in_another_cell(change: dict[str, Any]) -> None:
    mix = {"total": 100, "float": 40, "load_global": 20}
    usual = Evidence(
        kernel_id="k",
        toolchain="t",
        registers=32,
        shared_bytes=0,
        launches=1,
        code_bytes=400,
        instructions=mix,
    )
    assert usual.model_copy(update=change).behaviour != usual.behaviour
    alike = usual.model_copy(update={"registers": 40, "code_bytes": 410})
    assert alike.behaviour == usual.behaviour


def test_a_problem_takes_a_seed_of_another_language() -> None:
    problem = synthetic_problem()
    cuda = Kernel(id="k", language="cuda", source="__global__ void f() {}")
    other = problem.in_language_of(cuda)
    assert (other.language, other.seed_source, other.template) == ("cuda", cuda.source, None)
    assert other.cases == problem.cases
    assert other.id != problem.id
    assert problem.in_language_of(Kernel(id="k", language="cpp", source="int x;")) is problem


def test_evidence_says_what_speaks_against_a_kernel() -> None:
    verdicts = {
        kind: Evidence(kernel_id="", toolchain="", failure=Failure(kind=kind, message="no")).verdict
        for kind in FailureKind
    }
    assert verdicts[FailureKind.COMPILE_ERROR] == "does not compile"
    assert verdicts[FailureKind.CHEATING] == "does not compile"
    assert verdicts[FailureKind.WRONG_RESULT] == "is wrong when it is emulated"
    assert verdicts[FailureKind.CRASH] == "fails when it is emulated"
    assert Evidence(kernel_id="", toolchain="").verdict == ""


@pytest.mark.parametrize("kind", [None, *FailureKind])
def test_what_emulation_refutes_compiles(kind: FailureKind | None) -> None:
    failure = None if kind is None else Failure(kind=kind, message="no")
    evidence = Evidence(kernel_id="", toolchain="", failure=failure)
    assert evidence.compiles == (kind in (None, FailureKind.WRONG_RESULT, FailureKind.CRASH))


def test_an_estimate_is_told_in_words() -> None:
    estimate = make_estimate(1e-3)
    low, high = estimate.interval_s
    assert low * high == pytest.approx(1e-6)
    facts = dict(estimate.facts())
    assert facts["alone would take"] == "memory 90%, issue 30%"
    assert facts["shared memory"].startswith("2.0 times")
    assert "sampled" not in facts
    alone = estimate.model_copy(
        update={"exact": False, "bank_conflicts": 1.0, "sectors_per_request": None}
    )
    facts = dict(alone.facts())
    assert "sampled" in facts
    assert facts["shared memory"] == "no conflicts"
    assert "global memory" not in facts


def forecast_of(**failure: float) -> Forecast:
    return Forecast(
        forecaster="f",
        anchor_id="a",
        anchor_log2_speedup=0.0,
        distribution=Distribution.normal(0.0, 1.0),
        failure={FailureKind(kind): chance for kind, chance in failure.items()},
    )


def after(forecast: Forecast, **rehearsal: Any) -> Forecast:
    evidence = Evidence(kernel_id="k", toolchain="t", rehearsal=Rehearsal(**rehearsal))
    return forecast.conditioned_on(evidence)


def test_a_rehearsal_changes_a_forecast_by_bayes_rule_and_is_no_veto() -> None:
    prior = forecast_of(compile_error=0.2, wrong_result=0.1)
    refuted = Rehearsal(failure=Failure(kind=FailureKind.COMPILE_ERROR, message="no ModelNew"))
    conditioned = after(prior, **dict(refuted))
    ratios = refuted.likelihood_ratios
    joint = {kind: chance * ratios[kind] for kind, chance in prior.failure.items()}
    total = prior.p_ok + sum(joint.values())
    assert conditioned.failure == pytest.approx({k: v / total for k, v in joint.items()})
    assert 0.0 < conditioned.p_ok < 0.1 < prior.p_ok
    assert "no ModelNew" in conditioned.rationale
    assert after(prior).p_ok > prior.p_ok  # read, and nothing was seen


def test_a_rehearsal_is_believed_where_a_forecaster_fears_nothing() -> None:
    failure = Failure(kind=FailureKind.COMPILE_ERROR, message="no ModelNew")
    assert after(forecast_of(), failure=failure).p_ok < 0.8
    assert after(forecast_of()).p_ok == 1.0


@pytest.mark.parametrize(
    ("rehearsal", "outcome"),
    [
        (Rehearsal(), "read"),
        (Rehearsal(undecided="no package"), "read"),
        (Rehearsal(stage="running"), "passed"),
        (Rehearsal(stage="running", undecided="too large"), "undecided"),
        (
            Rehearsal(stage="running", failure=Failure(kind=FailureKind.WRONG_RESULT, message="x")),
            "failed",
        ),
    ],
)
def test_a_rehearsal_has_one_outcome(rehearsal: Rehearsal, outcome: str) -> None:
    assert rehearsal.outcome == outcome
    assert set(rehearsal.likelihood_ratios) >= {FailureKind.COMPILE_ERROR, FailureKind.CRASH}
