from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast import state as state_module
from kernelcast.errors import StoreError
from kernelcast.events import (
    BudgetChanged,
    CalibrationRecord,
    Decided,
    Event,
    Forecasted,
    Measured,
    Proposed,
    Reserved,
    RunEnded,
    RunSpec,
    RunStarted,
    Settled,
    Voided,
)
from kernelcast.state import Calibration, State
from kernelcast.testing import (
    FAKE_DEVICE,
    SyntheticBackend,
    example_history,
    make_candidate,
    make_kernel,
    synthetic_problem,
)
from kernelcast.types import (
    Budget,
    Decision,
    Failure,
    FailureKind,
    Measurement,
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


# --------------------------------------------------------------------------------- as a fold


def test_survives_json() -> None:
    events, _ = example_history()
    state = fold(events)
    again = State.model_validate_json(state.model_dump_json())
    assert again == state
    # And goes on alike.
    for each in (state, again):
        each.apply(Voided(entry="search-5"))
        search(each, "new", 1.0)
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
    assert (state.duplicates, state.requests, state.expansions) == (1, 2, 5)
    assert (state.audited, state.confirmations, state.forecasts) == (1, 1, 4)
    assert set(state.archive) == {SEED.id, trusted.id, audited.id, best.id}
    assert state.incumbent.kernel_id == best.id
    assert state.incumbent.confirmed
    assert state.archive[trusted.id].origin == "forecast"
    assert state.spent == {Resource.MEASUREMENTS: 2.0, Resource.DEVICE_S: pytest.approx(0.04)}
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
    calibration = Calibration()
    calibration.add(CalibrationRecord(blind=True, p_ok=0.9, ok=False))
    assert calibration.crps is None
    assert calibration.half_brier is None
    assert calibration.coverage_80 is None
    assert calibration.expected_calibration_error is None


def test_calibration_figures() -> None:
    calibration = Calibration()
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
