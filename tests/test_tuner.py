"""Suggestions never repeat, reports teach, a saved tuner goes on as if it had not been saved."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast import Budget, SetupError, Store, StoreError, Template, Trial, Tuner
from kernelcast.canonical import canonical_parameters
from kernelcast.types import Parameters

SPACE: list[Parameters] = [
    {"block": block, "tile": tile, "unroll": unroll}
    for block, tile, unroll in itertools.product((16, 32, 64, 128, 256), (1, 2, 4, 8), (0, 1))
]
LARGE = Template(
    parameters={
        "block": (16, 32, 64, 128, 256),
        "tile": (1, 2, 4, 8),
        "x": tuple(range(1, 41)),
        "y": tuple(range(1, 41)),
        "z": tuple(range(1, 31)),
    },
    constraints=("block * tile <= 1024",),
)


def seconds(parameters: Parameters) -> float | None:
    """Fastest at block 64 and tile 4; the largest block fails with the largest tiles."""
    block, tile = float(parameters["block"]), float(parameters["tile"])
    if block * tile > 1024:
        return None
    rest = sum(0.02 * abs(float(parameters.get(name, 9)) - 9) for name in ("x", "y", "z"))
    unrolled = 0.05 * float(parameters.get("unroll", 0))
    steps = 0.5 * abs(math.log2(block) - 6) + 0.3 * abs(math.log2(tile) - 2) + unrolled + rest
    return float(1e-3 * 2.0**steps)


def tell(tuner: Tuner, measured: Trial | Parameters) -> None:
    time = seconds(measured.configuration if isinstance(measured, Trial) else measured)
    tuner.report(measured, seconds=time, failed=time is None)


def run(tuner: Tuner, measurements: int) -> list[str]:
    order = []
    for _ in range(measurements):
        for trial in tuner.suggest():
            order.append(canonical_parameters(trial.configuration))
            tell(tuner, trial)
    return order


def elsewhere(*, reverse: bool = False) -> dict[str, float | None]:
    times = {json.dumps(dict(point)): seconds(point) for point in SPACE}
    if reverse:
        times = {key: time and 1e-6 / time for key, time in times.items()}
    return times


def test_it_finds_the_fastest_and_says_so() -> None:
    tuner = Tuner(SPACE, budget=Budget(measurements=20))
    run(tuner, 20)
    assert tuner.best is not None
    assert tuner.best.configuration == {"block": 64, "tile": 4, "unroll": 0}
    assert tuner.best.seconds == pytest.approx(1e-3)
    assert tuner.stop_reason == "the budget is spent: 20 measurements"
    assert tuner.suggest() == []
    assert len(tuner.outcomes) == 20


def test_times_of_other_devices_lead_to_the_fastest_at_once() -> None:
    tuner = Tuner(SPACE, device="RTX-3090", known={"RTX-A4000": elsewhere()})
    run(tuner, 1)
    assert tuner.best is not None
    assert tuner.best.configuration == {"block": 64, "tile": 4, "unroll": 0}


def test_times_that_mislead_are_dropped() -> None:
    tuner = Tuner(SPACE, known={"liar": elsewhere(reverse=True)})
    run(tuner, 20)
    assert tuner.best is not None
    assert tuner.best.seconds == pytest.approx(1e-3, rel=0.1)


def test_times_of_the_device_itself_count_as_measured() -> None:
    times = elsewhere()
    some = dict(itertools.islice(times.items(), 30))
    tuner = Tuner(SPACE, device="RTX-3090", known={"RTX-3090": some}, budget=Budget(measurements=5))
    assert len(tuner.outcomes) == 30
    measured = {canonical_parameters(json.loads(key)) for key in some}
    assert not measured & set(run(tuner, 5))
    assert tuner.stop_reason == "the budget is spent: 5 measurements"


def test_the_keys_of_known_times_are_json_in_any_order() -> None:
    times = {
        json.dumps(dict(reversed(list(json.loads(key).items())))): t
        for key, t in elsewhere().items()
    }
    one, other = (Tuner(SPACE, known={"A100": known}) for known in (times, elsewhere()))
    assert run(one, 6) == run(other, 6)


def test_several_trials_are_in_flight_and_differ() -> None:
    tuner = Tuner(SPACE)
    run(tuner, 8)
    trials = tuner.suggest(6)
    assert [trial.number for trial in trials] == list(range(8, 14))
    more = tuner.suggest(3)
    points = [canonical_parameters(trial.configuration) for trial in (*trials, *more)]
    assert len(set(points)) == 9
    for trial in reversed(trials):
        tell(tuner, trial)
    assert len(tuner.outcomes) == 14


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.integers(0, 5), st.data())
def test_no_configuration_is_suggested_twice(
    batches: list[int], seed: int, data: st.DataObject
) -> None:
    tuner = Tuner(SPACE, seed=seed)
    suggested: list[str] = []
    in_flight = []
    for batch in batches:
        trials = tuner.suggest(batch)
        suggested += [canonical_parameters(trial.configuration) for trial in trials]
        in_flight += trials
        for _ in range(data.draw(st.integers(0, len(in_flight)))):
            tell(tuner, in_flight.pop(data.draw(st.integers(0, len(in_flight) - 1))))
    assert len(suggested) == len(set(suggested)) == min(sum(batches), len(SPACE))


def test_a_space_is_exhausted() -> None:
    tuner = Tuner(SPACE[:7])
    assert len(set(run(tuner, 7))) == 7
    assert tuner.suggest(2) == []
    assert tuner.stop_reason == "the space is exhausted: all 7 configurations were tried"


def test_it_stops_where_no_improvement_is_expected() -> None:
    tuner = Tuner(SPACE, known={"same": elsewhere()})
    while tuner.stop_reason is None:
        run(tuner, 1)
    assert "no improvement is expected" in tuner.stop_reason
    assert len(tuner.outcomes) < len(SPACE)
    assert tuner.suggest()  # advice, not an end


def test_device_seconds_are_a_budget_too() -> None:
    tuner = Tuner(SPACE, budget=Budget(device_s=3.5))
    while trials := tuner.suggest():
        tuner.report(trials[0], seconds=seconds(trials[0].configuration) or 1.0, cost_s=1.0)
    assert tuner.stop_reason == "the budget is spent: 4 of 3.5 seconds"


def test_forecasts_have_an_interval_a_chance_and_a_distribution() -> None:
    tuner = Tuner(SPACE)
    before = tuner.forecast(SPACE[:1])[0]
    assert before.interval_s[0] < before.seconds < before.interval_s[1]
    run(tuner, 25)
    forecasts = tuner.forecast()
    assert [forecast.configuration for forecast in forecasts] == SPACE
    for forecast in forecasts:
        low, high = forecast.interval_s
        assert low < forecast.seconds < high
        best = tuner.best
        assert best is not None
        assert best.seconds is not None
        ratio = best.seconds / forecast.seconds
        assert 2.0 ** forecast.speedup.quantile(0.5) == pytest.approx(ratio)
        assert forecast.p_ok > 0.5 or seconds(forecast.configuration) is None
    failing, alike = ({"block": 256, "tile": 8, "unroll": unroll} for unroll in (0, 1))
    unwarned = tuner.forecast([alike])[0].p_ok
    tell(tuner, failing)
    assert tuner.forecast([alike])[0].p_ok < unwarned - 0.1


def test_a_forecast_changes_no_suggestion() -> None:
    asked, silent = Tuner(SPACE), Tuner(SPACE)
    for _ in range(15):
        first, second = asked.suggest(2), silent.suggest(2)
        assert first == second
        for one, other in zip(first, second, strict=True):
            tell(asked, one)
            asked.forecast()
            tell(silent, other)


@pytest.mark.parametrize("space", [SPACE, LARGE], ids=["listed", "drawn"])
def test_a_saved_tuner_goes_on_as_if_it_had_not_been_saved(
    tmp_path: Path, space: list[Parameters] | Template
) -> None:
    known = {"A100": elsewhere()} if space is SPACE else {}
    tuner = Tuner(space, device="H100", known=known, budget=Budget(measurements=40), seed=3)
    run(tuner, 12)
    waiting = tuner.suggest(2)
    tuner.save(tmp_path / "tuner.json")
    loaded = Tuner.load(tmp_path / "tuner.json")
    assert loaded.outcomes == tuner.outcomes
    assert loaded.best == tuner.best
    for trial in waiting:
        tell(tuner, trial)
        tell(loaded, trial)
    assert run(loaded, 8) == run(tuner, 8)
    assert loaded.forecast(SPACE[:3] if space is SPACE else loaded.configurations[:3]) == (
        tuner.forecast(SPACE[:3] if space is SPACE else tuner.configurations[:3])
    )


@pytest.mark.parametrize("space", [SPACE, LARGE], ids=["listed", "drawn"])
def test_a_tuner_with_a_store_goes_on_where_it_stopped(
    tmp_path: Path, space: list[Parameters] | Template
) -> None:
    def opened(name: str) -> Tuner:
        budget = Budget(measurements=30)
        return Tuner(space, device="H100", budget=budget, store=tmp_path / name, seed=3)

    unbroken = opened("unbroken.db")
    order = run(unbroken, 26)
    first = opened("store.db")
    assert run(first, 22) == order[:22]
    lost = first.suggest(2)
    second = opened("store.db")
    assert second.outcomes == first.outcomes
    assert second.in_flight == tuple(lost)
    # What was in flight is handed out again before anything else.
    assert second.suggest() == lost[:1]
    tell(second, lost[0])
    tell(second, lost[1])
    assert len(run(second, 9)) == 6
    assert second.stop_reason == "the budget is spent: 30 measurements"
    assert opened("store.db").outcomes == second.outcomes
    with pytest.raises(StoreError, match="written to by another process"):
        tell(first, first.configurations[0])


def test_a_store_of_one_kernel_has_its_times_on_every_device(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store:
        first = Tuner(SPACE, device="RTX-A4000", store=store)
        for point in SPACE:
            tell(first, point)
        second = Tuner(SPACE, device="RTX-3090", store=store)
        assert second.outcomes == ()
        run(second, 1)
        assert second.best is not None
        assert second.best.configuration == {"block": 64, "tile": 4, "unroll": 0}
        # Another kernel knows nothing of it, nor does a space of other parameters.
        other = Tuner(SPACE, device="RTX-3090", store=store, kernel="other")
        cold = Tuner(SPACE, device="RTX-3090")
        assert run(other, 3) == run(cold, 3)


def test_a_named_kernel_keeps_its_times_when_its_space_changes(tmp_path: Path) -> None:
    path = str(tmp_path / "store.db")
    first = Tuner(SPACE[:30], device="H100", store=path, kernel="gemm")
    measured = run(first, 10)
    second = Tuner(SPACE[10:], device="H100", store=path, kernel="gemm")
    left = {canonical_parameters(point) for point in SPACE[10:30]}
    kept = [canonical_parameters(outcome.configuration) for outcome in second.outcomes]
    assert kept == [key for key in measured if key in left]
    with pytest.raises(StoreError, match="with other parameters"):
        Tuner([{"warps": 4}], device="H100", store=path, kernel="gemm")


def test_nothing_is_learnt_from_a_tuning_that_was_not_made_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Store.open(tmp_path / "store.db") as store:
        run(Tuner(SPACE, device="RTX-A4000", store=store), 20)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    with Store.open(tmp_path / "store.db") as store:
        with pytest.raises(StoreError, match=r"was not written here.*--trust-store"):
            Tuner(SPACE, device="RTX-A4000", store=store)
        fresh, taught = (
            Tuner(SPACE, device="RTX-3090"),
            Tuner(SPACE, device="RTX-3090", store=store),
        )
        assert "Nothing is learnt from run tune-" in caplog.text
        assert run(taught, 3) == run(fresh, 3)


TUNING = """
import os, sys
from tests.test_tuner import SPACE, tell
from kernelcast import Budget, Tuner
tuner = Tuner(SPACE, device="H100", store=sys.argv[1], budget=Budget(measurements=12))
while trials := tuner.suggest(2):
    if len(tuner.outcomes) == int(sys.argv[2]):
        os.kill(os.getpid(), 9)
    for trial in trials:
        print(trial.number, dict(trial.configuration), flush=True)
        tell(tuner, trial)
"""


def test_a_killed_tuner_goes_on_and_only_one_process_tunes(tmp_path: Path) -> None:
    def told(store: str, killed_after: int) -> list[str]:
        command = [sys.executable, "-c", TUNING, str(tmp_path / store), str(killed_after)]
        process = subprocess.run(
            command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False
        )
        assert process.returncode == (-9 if killed_after >= 0 else 0), process.stderr
        return process.stdout.splitlines()

    unbroken = told("unbroken.db", -1)
    assert len(unbroken) == 12
    assert told("killed.db", 6) + told("killed.db", -1) == unbroken
    holder = Tuner(SPACE, device="H100", store=tmp_path / "killed.db")
    command = [sys.executable, "-c", TUNING, str(tmp_path / "killed.db"), "-1"]
    refused = subprocess.run(
        command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False
    )
    assert "is running" in refused.stderr
    assert len(holder.outcomes) == 12


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(SetupError, match=r"is no file of Tuner\.save"):
        Tuner.load(tmp_path / "other.json")
    with pytest.raises(SetupError, match=r"is no file of Tuner\.save"):
        Tuner.load(tmp_path / "missing.json")


def test_a_space_too_large_to_list_is_drawn_and_drawn_anew_near_the_best() -> None:
    tuner = Tuner(LARGE)
    assert len(tuner.configurations) == 20_000
    assert all(LARGE.admits(point) for point in tuner.configurations)
    order = run(tuner, 45)
    assert len(set(order)) == 45
    assert len(tuner.configurations) == 20_000
    best = tuner.best
    assert best is not None
    assert best.seconds is not None
    fast = sorted(seconds(point) or math.inf for point in tuner.configurations)
    assert best.seconds <= fast[200]
    # Forecasts still know which were drawn at random.
    blind = {canonical_parameters(tuner.configurations[row]) for row in tuner._forecaster.blind}
    assert set(order[:4]) < blind
    # Any configuration of the space may be reported and forecast, drawn or not.
    perfect = {"block": 64, "tile": 4, "x": 9, "y": 9, "z": 9}
    tell(tuner, perfect)
    assert tuner.best is not None
    assert tuner.best.configuration == perfect


def test_what_is_fast_on_another_device_is_among_the_drawn() -> None:
    perfect = {"block": 64, "tile": 4, "x": 9, "y": 9, "z": 9}
    others = Tuner(LARGE, seed=5).configurations[:300]
    times = {json.dumps(dict(point)): seconds(point) for point in (perfect, *others)}
    tuner = Tuner(LARGE, known={"A100": times})
    assert len(tuner.configurations) == 20_000
    (trial,) = tuner.suggest()
    assert trial.configuration == perfect


def test_a_small_template_is_listed() -> None:
    template = Template(
        parameters={"block": (1, 2, 3), "tile": (1, 2)}, constraints=("block != 2",)
    )
    assert len(Tuner(template).configurations) == 4


def test_a_later_report_replaces_the_first() -> None:
    tuner = Tuner(SPACE)
    tuner.report(SPACE[0], seconds=1e-9)
    tuner.report(SPACE[0], seconds=1.0)
    tuner.report(SPACE[1], failed=True)
    assert tuner.best is not None
    assert tuner.best.seconds == 1.0
    assert [outcome.seconds for outcome in tuner.outcomes] == [1.0, None]


def test_what_cannot_be_is_named() -> None:
    tuner = Tuner(SPACE)
    with pytest.raises(SetupError, match="either a time"):
        tuner.report(SPACE[0])
    with pytest.raises(SetupError, match="either a time"):
        tuner.report(SPACE[0], seconds=1.0, failed=True)
    with pytest.raises(SetupError, match="must be a positive number"):
        tuner.report(SPACE[0], seconds=0.0)
    with pytest.raises(SetupError, match="the space has no configuration"):
        tuner.report({"block": 3}, seconds=1.0)
    with pytest.raises(SetupError, match="listed twice"):
        Tuner([SPACE[0], SPACE[0]])
    with pytest.raises(SetupError, match="at least one configuration"):
        Tuner([])
    with pytest.raises(SetupError, match="a key is its JSON text"):
        Tuner(SPACE, known={"A100": {"16,1,0": 1.0}})
    with pytest.raises(SetupError, match="give seconds, or None"):
        Tuner(SPACE, known={"A100": {json.dumps(SPACE[0]): -1.0}})
    with pytest.raises(SetupError, match="admit none"):
        Tuner(Template(parameters={"block": (1, 2)}, constraints=("block > 2",)))
