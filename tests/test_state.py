from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast import state as state_module
from kernelcast.distribution import Distribution
from kernelcast.errors import StoreError
from kernelcast.events import (
    BudgetChanged,
    CalibrationRecord,
    Decided,
    Event,
    Forecasted,
    Inspected,
    Measured,
    Proposed,
    Reserved,
    Retracted,
    RunEnded,
    RunSpec,
    RunStarted,
    Settled,
    Unanswered,
    Voided,
)
from kernelcast.state import CalibrationSums, SentBack, State
from kernelcast.testing import (
    FAKE_DEVICE,
    SyntheticBackend,
    example_history,
    make_candidate,
    make_kernel,
    synthetic_problem,
)
from kernelcast.types import (
    Attempt,
    Budget,
    Claim,
    Decision,
    Evidence,
    Failure,
    FailureKind,
    Forecast,
    Measurement,
    Purpose,
    Resource,
)

PROBLEM = synthetic_problem()
SEED = make_kernel(PROBLEM.seed_source)
TIED = SyntheticBackend().measure(PROBLEM, SEED, 0)
Action = Literal["drop", "trust", "measure", "audit"]


def fold(events: list[Event]) -> State:
    state = State()
    for event in events:
        state.apply(event)
    return state


def begun(budget: Budget | None = None) -> State:
    started = RunStarted(
        spec=RunSpec(),
        problem=PROBLEM,
        device=FAKE_DEVICE,
        seed_kernel_id=SEED.id,
        budget=budget or Budget(),
    )
    return fold([started, Measured(measurement=TIED, purpose="reference")])


def measurement(key: str, log2_speedup: float | None) -> Measurement:
    """A measured speedup, or a crash."""
    assert TIED.timing is not None
    timing = TIED.timing.model_copy(update={"log2_speedup": log2_speedup})
    crash = Failure(kind=FailureKind.CRASH, message="gone")
    failed = log2_speedup is None
    outcome = {"timing": None if failed else timing, "failure": crash if failed else None}
    return TIED.model_copy(update={"kernel_id": key, **outcome})


def propose(state: State, key: str, parent: str = SEED.id, request: int = 0) -> None:
    state.apply(Proposed(kernel_id=key, parent_id=parent, proposer="fake", request=request))


def decide(state: State, key: str, action: Action, log2_speedup: float | None = None) -> None:
    decision = Decision(action=action, score=0.0, reason="a test")
    state.apply(Decided(kernel_id=key, decision=decision, log2_speedup=log2_speedup))


def search(state: State, key: str, log2_speedup: float | None, parent: str = SEED.id) -> None:
    """Propose, decide and measure."""
    propose(state, key, parent)
    decide(state, key, "measure")
    state.apply(Measured(measurement=measurement(key, log2_speedup), purpose="search"))


def confirm(state: State, key: str, log2_speedup: float | None) -> None:
    state.apply(Measured(measurement=measurement(key, log2_speedup), purpose="confirmation"))


def fail(state: State, key: str, kind: FailureKind, message: str) -> None:
    """Propose, decide and measure, to a failure."""
    propose(state, key)
    decide(state, key, "measure")
    failure = Failure(kind=kind, message=message)
    failed = TIED.model_copy(update={"kernel_id": key, "timing": None, "failure": failure})
    state.apply(Measured(measurement=failed, purpose="search"))


# --------------------------------------------------------------------------------- as a fold


def test_survives_json() -> None:
    events, _ = example_history()
    state = fold(events)
    again = State.model_validate_json(state.model_dump_json())
    assert again == state
    # And goes on alike.
    for one in (state, again):
        one.apply(Voided(entry="search-5"))
        search(one, "new", 1.0)
    assert again == state


def test_two_states_share_nothing() -> None:
    fold(example_history()[0])
    assert State().calibration.bucket_counts == [0] * state_module.CONFIDENCE_BUCKETS
    assert State().archive == {}
    assert State().failures == {}


def test_the_example_adds_up() -> None:
    events, (_, _, trusted, audited, best) = example_history()
    state = fold(events)
    assert state.events == len(events)
    assert state.considered == 4 == state.dropped + state.trusted + state.measured
    assert (state.duplicates, state.requests, state.expansions) == (1, 3, 5)
    assert (state.audited, state.confirmations, state.forecasts) == (1, 2, 4)
    assert set(state.archive) == {SEED.id, trusted.id, audited.id, best.id}
    assert state.incumbent.kernel_id == best.id
    assert state.incumbent.confirmed
    assert state.archive[trusted.id].origin == "forecast"
    # The lost attempt is charged at its reservation.
    assert state.spent == {Resource.MEASUREMENTS: 2.0, Resource.DEVICE_S: pytest.approx(1.05)}
    assert (state.lost, state.quarantined, state.leases, state.losses) == (1, 1, {}, {})
    assert set(state.entries) == {"search-5"}
    assert state.ended is None
    assert state.left(Resource.MEASUREMENTS) == 17.0
    assert state.left(Resource.FORECAST_USD) == float("inf")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["drop", "trust", "measure", "audit"]),
            st.none() | st.floats(-3.0, 3.0),
        ),
        max_size=25,
    )
)
def test_every_candidate_is_somewhere(history: list[tuple[Action, float | None]]) -> None:
    state = begun()
    for index, (action, outcome) in enumerate(history):
        key = f"k{index}"
        propose(state, key)
        decide(state, key, action, outcome if action == "trust" else None)
        if action in ("measure", "audit") and index % 3:
            state.apply(Measured(measurement=measurement(key, outcome), purpose="search"))
    assert state.considered == len(history)
    assert state.considered == (
        len(state.open) + len(state.pending) + state.dropped + state.trusted + state.measured
    )
    measured = [node for node in state.archive.values() if node.origin == "measured"]
    assert state.measured == len(measured) + sum(state.failures.values())
    assert state.expansions == sum(node.visits for node in state.archive.values())
    assert State.model_validate_json(state.model_dump_json()) == state


def test_an_empty_run_has_no_incumbent() -> None:
    with pytest.raises(StoreError, match="run_started"):
        _ = State().incumbent


# ---------------------------------------------------------------------------- the best so far


def test_a_first_measurement_makes_no_best() -> None:
    state = begun()
    search(state, "fast", 1.0)
    assert state.incumbent.kernel_id == SEED.id
    assert state.unconfirmed == {"fast": 1.0}


def test_a_confirmation_replaces_the_first_measurement() -> None:
    state = begun()
    search(state, "fast", 1.0)
    confirm(state, "fast", 0.8)
    assert state.incumbent.kernel_id == "fast"
    assert state.incumbent.log2_speedup == 0.8
    assert state.incumbent.confirmed
    assert state.unconfirmed == {}
    assert state.measured == 1


def test_a_failed_confirmation_removes_the_kernel() -> None:
    state = begun()
    search(state, "lucky", 1.0)
    confirm(state, "lucky", None)
    assert "lucky" not in state.archive
    assert state.incumbent.kernel_id == SEED.id
    assert state.unconfirmed == {}


def test_a_confirmation_below_the_incumbent_changes_no_best() -> None:
    state = begun()
    search(state, "good", 1.0)
    confirm(state, "good", 0.9)
    search(state, "lucky", 1.5)
    confirm(state, "lucky", 0.2)
    assert state.incumbent.kernel_id == "good"
    assert state.archive["lucky"].log2_speedup == 0.2


def retract(state: State, key: str, purpose: Purpose) -> None:
    event = Retracted(
        entry="an entry",
        kernel_id=key,
        parent_id=SEED.id,
        purpose=purpose,
        device=FAKE_DEVICE.id,
        reason="it drifts",
    )
    state.apply(event)


def test_a_retracted_measurement_is_made_again() -> None:
    state = begun()
    search(state, "a", 1.0)
    retract(state, "a", "search")
    assert (set(state.archive), set(state.pending)) == ({SEED.id}, {"a"})
    assert state.unconfirmed == {}
    state.apply(Measured(measurement=measurement("a", 0.5), purpose="search"))
    assert state.archive["a"].log2_speedup == 0.5
    assert state.unconfirmed == {"a": 0.5}


def test_a_retracted_confirmation_takes_the_best_away_until_the_next_one() -> None:
    state = begun()
    for key, log2_speedup in (("a", 1.0), ("b", 2.0)):
        search(state, key, log2_speedup)
        confirm(state, key, log2_speedup)
    retract(state, "b", "search")
    assert state.incumbent.kernel_id == "b", "the second measurement has replaced the first"
    retract(state, "b", "confirmation")
    assert state.incumbent.kernel_id == "a"
    assert state.unconfirmed == {"b": 2.0}
    confirm(state, "b", 1.5)
    assert state.incumbent.kernel_id == "b"
    retract(state, "b", "confirmation")
    retract(state, "a", "confirmation")
    assert state.incumbent.kernel_id == SEED.id


def test_a_retracted_reference_is_measured_again() -> None:
    state = begun()
    state.apply(Measured(measurement=measurement(SEED.id, 0.0), purpose="reference"))
    retract(state, SEED.id, "reference")
    assert state.reference is None


def test_what_is_slower_than_the_best_needs_no_confirmation() -> None:
    state = begun()
    search(state, "slow", -1.0)
    assert state.unconfirmed == {}


def test_a_trusted_kernel_is_never_the_best() -> None:
    state = begun()
    propose(state, "promised")
    decide(state, "promised", "trust", 5.0)
    assert state.archive["promised"].origin == "forecast"
    assert state.incumbent.kernel_id == SEED.id


# --------------------------------------------------------------------------------- lineage


def test_the_anchor_is_the_nearest_measured_ancestor() -> None:
    state = begun()
    search(state, "measured", 0.5)
    propose(state, "trusted", parent="measured")
    decide(state, "trusted", "trust", 0.4)
    propose(state, "trusted too", parent="trusted")
    decide(state, "trusted too", "trust", 0.3)
    assert state.anchor("trusted too").kernel_id == "measured"
    assert state.anchor("measured").kernel_id == "measured"
    assert state.anchor("unheard of").kernel_id == SEED.id


def test_a_parent_remembers_its_best_child_and_its_visits() -> None:
    state = begun()
    for key, log2_speedup in (("a", 0.2), ("b", 0.7), ("c", 0.4)):
        search(state, key, log2_speedup)
    assert state.archive[SEED.id].best_child == 0.7
    assert state.archive[SEED.id].visits == 3


def test_a_later_forecast_replaces_an_earlier_one() -> None:
    state = begun()
    propose(state, "k")
    for mean in (0.0, 1.0):
        forecast = make_candidate(0, mean).forecast
        assert forecast is not None
        state.apply(Forecasted(kernel_id="k", forecast=forecast))
    replaced = state.open["k"].forecast
    assert replaced is not None
    assert replaced.distribution.mean() == pytest.approx(1.0)


def test_requests_in_a_row_that_brought_nothing_new_are_counted_by_the_events_alone() -> None:
    """A resumed run must look as far afield as one that was never interrupted."""
    state = begun()
    counted = []
    for request, duplicate in [(0, False), (0, True), (1, True), (1, True), (2, True), (3, False)]:
        state.apply(
            Proposed(
                kernel_id=f"{request}",
                parent_id=SEED.id,
                proposer="fake",
                request=request,
                duplicate=duplicate,
            )
        )
        counted.append(state.fruitless)
    assert counted == [0, 0, 1, 1, 2, 0]


def test_an_answer_without_a_kernel_is_remembered_and_ends_a_repair() -> None:
    state = begun()
    claim = Claim(idea="halve the loads", moves=("vectorise",))
    missed = Attempt(claim=claim, outcome="edit 1 does not apply")
    state.sent_back = [SentBack(kernel_id="k", parent_id=SEED.id, complaint="no")]
    answer = Unanswered(
        parent_id=SEED.id, request=4, missed=(missed,), reason="edit 1 does not apply", repairs="k"
    )
    state.apply(answer)
    assert (state.requests, state.fruitless, state.unanswered) == (5, 1, "edit 1 does not apply")
    assert state.history(SEED.id) == (missed,)
    assert state.sent_back == []
    propose(state, "another")
    assert (state.fruitless, state.unanswered) == (0, "")


def test_the_archive_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "ARCHIVE_LIMIT", 20)
    monkeypatch.setattr(state_module, "_ARCHIVE_SLACK", 5)
    state = begun()
    search(state, "champion", 0.1)
    confirm(state, "champion", 0.1)
    for index in range(120):
        # All but the first few are faster than seed and incumbent, by forecast.
        propose(state, f"k{index:03}", parent=f"k{index - 1:03}" if index else SEED.id)
        decide(state, f"k{index:03}", "trust", 0.2 + 0.01 * index)
        # Seed and incumbent are kept beyond the limit.
        assert len(state.archive) <= 20 + 5 + 2
    assert {SEED.id, "champion"} <= set(state.archive)
    assert {f"k{index:03}" for index in range(105, 120)} <= set(state.archive)
    assert state.expansions == 121


def test_the_real_limits_hold() -> None:
    state = begun()
    for index in range(1_500):
        propose(state, f"k{index}")
        decide(state, f"k{index}", "trust", index / 1_000)
    assert len(state.archive) <= state_module.ARCHIVE_LIMIT + 101
    assert SEED.id in state.archive


# ---------------------------------------------------------------------- budget and calibration


def test_the_ledger_is_a_sum() -> None:
    state = begun(Budget(measurements=10, device_s=3.0))
    both = {Resource.MEASUREMENTS: 1.0, Resource.DEVICE_S: 1.0}
    state.apply(Reserved(entry="a", spend=both))
    state.apply(Reserved(entry="b", spend=both))
    assert state.left(Resource.DEVICE_S) == 1.0
    state.apply(Settled(entry="a", spend={Resource.MEASUREMENTS: 1.0, Resource.DEVICE_S: 0.25}))
    state.apply(Voided(entry="b"))
    assert state.left(Resource.DEVICE_S) == 2.75
    assert state.left(Resource.MEASUREMENTS) == 9.0
    assert state.attempts == 2


def test_a_larger_budget_lets_an_ended_run_go_on() -> None:
    state = begun(Budget(measurements=1))
    state.apply(RunEnded(reason="spent"))
    ended = state.ended
    state.apply(BudgetChanged(budget=Budget(measurements=5)))
    assert (ended, state.ended) == ("spent", None)
    assert state.left(Resource.MEASUREMENTS) == 5.0


def record(
    *, confidence: float = 0.5, bin_correct: bool = True, inside_80: bool = True
) -> CalibrationRecord:
    return CalibrationRecord(
        blind=False,
        p_ok=0.9,
        ok=True,
        crps=0.2,
        half_brier=0.4,
        confidence=confidence,
        bin_correct=bin_correct,
        inside_80=inside_80,
    )


def test_before_the_first_timed_forecast_there_are_no_figures() -> None:
    calibration = CalibrationSums()
    calibration.add(CalibrationRecord(blind=True, p_ok=0.9, ok=False))
    assert calibration.crps is None
    assert calibration.half_brier is None
    assert calibration.coverage_80 is None
    assert calibration.expected_calibration_error is None


def test_calibration_figures() -> None:
    calibration = CalibrationSums()
    calibration.add(record(confidence=0.95, bin_correct=True, inside_80=True))
    calibration.add(record(confidence=0.95, bin_correct=False, inside_80=False))
    calibration.add(record(confidence=1.0, bin_correct=True, inside_80=True))
    calibration.add(record(confidence=0.25, bin_correct=False, inside_80=True))
    calibration.add(CalibrationRecord(blind=True, p_ok=0.9, ok=False))
    assert (calibration.count, calibration.timed, calibration.blind) == (5, 4, 1)
    assert calibration.coverage_80 == 0.75
    assert calibration.crps == pytest.approx(0.2)
    assert calibration.half_brier == pytest.approx(0.4)
    assert calibration.failure_brier_sum == pytest.approx(4 * 0.01 + 0.81)
    # The bucket from 0.9 claims 2.9 of three and gets two; the one from 0.2 claims 0.25, gets none.
    assert calibration.expected_calibration_error == pytest.approx((0.9 + 0.25) / 4)


# --------------------------------------------------------- what was tried, sent back, imagined


def forecast(median: float, std: float, objection: str = "") -> Forecast:
    return Forecast(
        forecaster="fake",
        anchor_id=SEED.id,
        anchor_log2_speedup=0.0,
        distribution=Distribution.normal(median, std),
        objection=objection,
    )


def claimed(
    state: State,
    key: str,
    idea: str,
    parent: str = SEED.id,
    repairs: str | None = None,
    repair: int = 0,
) -> None:
    claim = Claim(idea=idea, moves=("tile",))
    state.apply(
        Proposed(
            kernel_id=key,
            parent_id=parent,
            proposer="fake",
            request=0,
            claim=claim,
            repairs=repairs,
            repair=repair,
        )
    )


def imagine(state: State, key: str, median: float, std: float, parent: str) -> None:
    propose(state, key, parent)
    state.apply(Forecasted(kernel_id=key, forecast=forecast(median, std)))
    decide(state, key, "trust", median)


def test_a_lineage_is_told_what_was_tried_on_it_and_what_came_of_it() -> None:
    state = begun()
    claimed(state, "a", "wider tiles")
    decide(state, "a", "measure")
    state.apply(Measured(measurement=measurement("a", 1.0), purpose="search"))
    claimed(state, "b", "even wider", parent="a")
    decide(state, "b", "measure")
    state.apply(Measured(measurement=measurement("b", None), purpose="search"))
    propose(state, "c", "a")  # without a claim
    decide(state, "c", "drop")
    attempts = state.history("a")
    assert [attempt.claim.idea for attempt in attempts] == ["wider tiles", "even wider"]
    assert [attempt.outcome for attempt in attempts] == ["measured", "crash (gone)"]
    assert [attempt.log2_change for attempt in attempts] == [1.0, None]
    assert state.history(SEED.id) == attempts[:1]
    assert state.history("nobody") == ()


@given(st.integers(0, 60), st.integers(1, 4))
def test_what_is_told_stays_small(attempts: int, depth: int) -> None:
    state = begun()
    parent = SEED.id
    for level in range(depth):
        for index in range(attempts):
            key = f"{level}-{index}"
            claimed(state, key, key, parent)
            decide(state, key, "measure")
            state.apply(Measured(measurement=measurement(key, 0.1 * index), purpose="search"))
        parent = f"{level}-0" if attempts else parent
        assert len(state.history(parent)) <= 12
    assert all(len(attempts) <= 8 for attempts in state.tried.values())


def test_what_was_objected_to_is_sent_back_until_it_was_repaired_twice() -> None:
    state = begun()
    claimed(state, "a", "vectorised")
    state.apply(Forecasted(kernel_id="a", forecast=forecast(0.0, 0.1, "nothing has changed")))
    decide(state, "a", "drop")
    assert [(entry.kernel_id, entry.complaint) for entry in state.sent_back] == [
        ("a", "nothing has changed")
    ]
    for key, number in (("b", 1), ("c", 2)):
        before = state.sent_back[0]
        assert before.repair == number
        claimed(state, key, "vectorised indeed", repairs=before.kernel_id, repair=number)
        assert state.sent_back == []
        state.apply(Forecasted(kernel_id=key, forecast=forecast(0.0, 0.1, "nothing has changed")))
        decide(state, key, "drop")
    assert state.sent_back == []
    assert [attempt.outcome for attempt in state.history(SEED.id)] == ["nothing has changed"] * 3


@pytest.mark.parametrize(
    ("kind", "message", "complaint"),
    [
        (FailureKind.WRONG_RESULT, "case a: y[0] is 1", "gives a wrong result: case a: y[0] is 1"),
        (FailureKind.CRASH, "case a: died", "fails as it runs: case a: died"),
        (FailureKind.TIMEOUT, "case a: no answer", "does not end in time: case a: no answer"),
        (FailureKind.TIMEOUT, "the machine was too busy; the kernel may be fast", ""),
        (FailureKind.COMPILE_ERROR, "expected ';'", "does not compile: expected ';'"),
        (FailureKind.CHEATING, "it forged a reply", ""),
    ],
)
def test_what_fails_on_the_device_is_sent_back_unless_it_cheats(
    kind: FailureKind, message: str, complaint: str
) -> None:
    state = begun()
    fail(state, "a", kind, message)
    told = [("a", SEED.id, complaint, 1)] if complaint else []
    sent = [(one.kernel_id, one.parent_id, one.complaint, one.repair) for one in state.sent_back]
    assert sent == told
    retract(state, "a", "search")
    assert state.sent_back == []


def test_a_parent_knows_its_cases_and_its_evidence() -> None:
    state = begun()
    assert TIED.timing is not None
    assert state.archive[SEED.id].cases == TIED.timing.speeds != ()
    shown = Evidence(kernel_id=SEED.id, toolchain="t", code_bytes=7)
    state.apply(Inspected(kernel_id=SEED.id, evidence=shown))
    assert state.archive[SEED.id].evidence == shown
    search(state, "a", 1.0)
    assert state.archive["a"].cases == TIED.timing.speeds
    slower = measurement("a", 0.9)
    assert slower.timing is not None
    case = slower.timing.cases[0].model_copy(update={"runtime_s": 9.0})
    timing = slower.timing.model_copy(update={"cases": (case,)})
    again = slower.model_copy(update={"timing": timing})
    state.apply(Measured(measurement=again, purpose="confirmation"))
    assert [case.runtime_s for case in state.archive["a"].cases] == [9.0]
    propose(state, "b")
    state.apply(Inspected(kernel_id="b", evidence=shown.model_copy(update={"kernel_id": "b"})))
    decide(state, "b", "trust", 0.5)
    trusted = state.archive["b"]
    assert (trusted.cases, trusted.evidence and trusted.evidence.code_bytes) == ((), 7)


def test_what_does_not_compile_is_sent_back_with_the_compilers_words() -> None:
    state = begun()
    propose(state, "a")
    failure = Failure(kind=FailureKind.COMPILE_ERROR, message="expected ';'" + "!" * 5000)
    broken = Evidence(kernel_id="a", toolchain="none", failure=failure)
    state.apply(Inspected(kernel_id="a", evidence=broken))
    decide(state, "a", "drop")
    assert state.sent_back[0].complaint.startswith("does not compile: expected ';'")
    assert "characters ...]" in state.sent_back[0].complaint
    assert len(state.sent_back[0].complaint) <= 2_100
    assert len(state.history(SEED.id)) == 0, "nothing was claimed"


def test_doubt_adds_up_along_a_chain_of_forecasts() -> None:
    state = begun()
    imagine(state, "a", 0.5, 0.3, SEED.id)
    imagine(state, "b", 1.0, 0.4, "a")
    assert state.archive["a"].std_log2 == pytest.approx(0.3, rel=0.05)
    assert state.archive["b"].std_log2 == pytest.approx(0.5, rel=0.05)
    propose(state, "c", "b")
    assert state.open["c"].chain_std == state.archive["b"].std_log2
    search(state, "d", 0.7)
    assert state.archive["d"].std_log2 == 0.0


def test_forecasts_of_a_chain_are_corrected_when_its_end_is_measured() -> None:
    state = begun()
    imagine(state, "a", 0.5, 0.3, SEED.id)
    imagine(state, "b", 1.0, 0.4, "a")
    propose(state, "c", "b")
    state.apply(Forecasted(kernel_id="c", forecast=forecast(1.0, 0.5)))
    decide(state, "c", "measure")
    before = {key: state.archive[key] for key in "ab"}
    state.apply(Measured(measurement=measurement("c", 0.0), purpose="search"))
    after = {key: state.archive[key] for key in "ab"}
    # One octave off; b answers for 0.25 of a variance of 0.5, a for 0.09.
    assert after["b"].log2_speedup == pytest.approx(1.0 - 0.5, abs=0.05)
    assert after["a"].log2_speedup == pytest.approx(0.5 - 0.18, abs=0.05)
    assert all(after[key].std_log2 < before[key].std_log2 for key in "ab")
    assert all(node.origin == "forecast" for node in after.values())
    assert state.archive[SEED.id].log2_speedup == 0.0


def test_audits_are_held_against_what_was_forecast() -> None:
    state = begun()
    for key, median, log2_speedup in (("a", 1.0, 1.5), ("b", -2.0, -1.0), ("c", 1.0, None)):
        propose(state, key)
        state.apply(Forecasted(kernel_id=key, forecast=forecast(median, 0.2)))
        decide(state, key, "audit")
        state.apply(Measured(measurement=measurement(key, log2_speedup), purpose="search"))
    assert [audit.new_best for audit in state.audits] == [True, False, False]
    assert [audit.p_new_best > 0.5 for audit in state.audits] == [True, False, True]


def test_a_run_is_stale_until_a_new_best_is_confirmed() -> None:
    state = begun()
    search(state, "a", -1.0)
    search(state, "b", 1.0)
    assert state.stale == 2
    confirm(state, "b", 0.9)
    assert state.stale == 0
    search(state, "c", 0.5)
    assert state.stale == 1


# ---------------------------------------------------------------------------------- failures


def test_the_first_failure_of_each_kind_is_kept() -> None:
    state = begun()
    fail(state, "a", FailureKind.CRASH, "first")
    fail(state, "b", FailureKind.WRONG_RESULT, "other")
    fail(state, "c", FailureKind.CRASH, "second")
    assert state.failures == {"crash": 2, "wrong_result": 1}
    kept = {
        kind: (one.kernel_id, one.failure.message) for kind, one in state.first_failures.items()
    }
    assert kept == {"crash": ("a", "first"), "wrong_result": ("b", "other")}


@pytest.mark.parametrize(
    ("kind", "last", "hopeless"),
    [
        (FailureKind.COMPILE_ERROR, "kernel.cpp:7:9: error: no such thing", True),
        (FailureKind.COMPILE_ERROR, "kernel.cpp:1:2: error: another thing", False),
        (FailureKind.TIMEOUT, "kernel.cpp:7:9: error: no such thing", False),
    ],
)
def test_a_run_is_hopeless_when_its_first_eight_measurements_fail_alike(
    kind: FailureKind, last: str, hopeless: bool
) -> None:
    state = begun()
    for number in range(7):
        message = f"In file included:\nkernel.cpp:{number}:1: error: no such thing"
        fail(state, f"k{number}", kind, message)
        assert state.hopeless is None
    fail(state, "k7", kind, last)
    assert (state.hopeless is not None) == hopeless


def test_one_kernel_that_runs_is_hope() -> None:
    state = begun()
    search(state, "runs", -1.0)
    for number in range(20):
        fail(state, f"k{number}", FailureKind.CRASH, "gone")
    assert state.hopeless is None
