"""Policies on recordings, through the one loop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelcast.backends.replay import Recorded, Recording
from kernelcast.errors import SetupError
from kernelcast.forecasters.roofline import RooflineForecaster
from kernelcast.judge.replaying import (
    Arm,
    Replayed,
    replay_search,
    replay_space,
    summarise,
)
from kernelcast.policies import MeasureAll
from kernelcast.store import Store
from kernelcast.strategies import Greedy
from kernelcast.testing import (
    FAKE_DEVICE,
    make_kernel,
)
from kernelcast.types import (
    Candidate,
    Decision,
    Failure,
    FailureKind,
    Kernel,
    View,
)
from search_replay import missed_winners  # benches are scripts: pytest has their folder on its path


class EverySecond:
    """Measures every second kernel it is shown."""

    name = "every_second"
    pool_size = 1

    def decide(self, pool: list[Candidate], view: View) -> dict[str, Decision]:
        return {
            each.kernel_id: Decision(
                action="drop" if each.ordinal % 2 else "measure", score=0.0, reason="its turn"
            )
            for each in pool
        }


def arm(policy: Any) -> Arm:
    return Arm("arm", lambda *, streamed: policy, RooflineForecaster)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "replay.db") as opened:
        yield opened


def space() -> Recording:
    rows = (({"A": value}, Recorded(1.0 / value, compile_s=0.5)) for value in range(1, 13))
    return Recording.from_rows(
        rows,
        problem="space",
        device=FAKE_DEVICE,
        language="cuda",
        source="int t;\n",
        reference={"A": 1},
    )


def recorded_search() -> tuple[Recording, list[Kernel]]:
    kernels = [make_kernel(f"int k{index};") for index in range(6)]
    crash = Failure(kind=FailureKind.CRASH, message="boom")
    times = [2.0, 1.0, 1.5, None, 0.5, 0.8]
    entries = [Recorded(seconds) if seconds else Recorded(failure=crash) for seconds in times]
    ids = ["reference", *(kernel.id for kernel in kernels)]
    recording = Recording.from_rows(
        zip(ids, [Recorded(2.0), *entries], strict=True),
        problem="search",
        device=FAKE_DEVICE,
        language="cpp",
        source="int reference;\n",
        reference="reference",
    )
    return recording, kernels


def test_a_space_is_searched_within_its_budget_and_charged_as_recorded(store: Store) -> None:
    found = replay_space(store, "r", space(), arm(MeasureAll()), measurements=5, seed=3)
    assert found.kind == "space"
    assert (found.measured, found.offered, len(found.curve)) == (5, 12, 5)
    assert list(found.curve) == sorted(found.curve)
    assert found.curve[-1] <= 1.0
    assert found.device_s >= 5 * 0.5
    assert found.loss == pytest.approx(1.0 - found.curve[-1])


def test_measuring_all_of_a_search_loses_nothing(store: Store) -> None:
    recording, kernels = recorded_search()
    found = replay_search(store, "r", recording, arm(MeasureAll()), kernels=kernels)
    assert (found.measured, found.offered) == (6, 6)
    assert found.loss == 0.0
    assert found.curve == pytest.approx((0.25, 0.5, 0.5, 0.5, 1.0, 1.0))


def test_a_search_is_shown_in_order_and_what_is_not_measured_is_missed(store: Store) -> None:
    recording, kernels = recorded_search()
    every_second = replay_search(store, "r", recording, arm(EverySecond()), kernels=kernels)
    assert every_second.measured == 3
    assert every_second.loss == pytest.approx(0.0)  # the best is the fifth
    shifted = replay_search(store, "s", recording, arm(EverySecond()), kernels=kernels[1:])
    assert shifted.loss == pytest.approx(1.0 - 0.5 / 0.8)  # it takes 0.8 s, the best 0.5 s


def test_an_arm_searches_by_its_own_strategy(store: Store) -> None:
    chosen: list[int] = []

    class Watched(Greedy):
        def select(self, *arguments: Any, **options: Any) -> list[str]:
            chosen.append(1)
            return super().select(*arguments, **options)

    watched = Arm("arm", lambda *, streamed: MeasureAll(), RooflineForecaster, Watched)
    replay_space(store, "r", space(), watched, measurements=2)
    assert chosen


def test_what_was_dropped_and_would_have_been_a_new_best_is_counted(store: Store) -> None:
    recording, kernels = recorded_search()
    # The second (1.0 s), fourth (fails) and sixth (0.8 s) are dropped; the best are then 2.0, 1.5
    # and 0.5 s, so of these only the second was a new best.
    replay_search(store, "r", recording, arm(EverySecond()), kernels=kernels)
    assert missed_winners(store.open_run("r"), recording) == (3, 1)
    found = replay_space(store, "s", space(), arm(EverySecond()), measurements=4)
    dropped, missed = missed_winners(store.open_run("s"), space())
    assert dropped > 0
    assert 0 <= missed <= dropped
    assert found.measured == 4


def test_what_fits_no_recording_is_told(store: Store) -> None:
    recording, _ = recorded_search()
    with pytest.raises(SetupError, match="replay its searches"):
        replay_space(store, "r", recording, arm(MeasureAll()), measurements=2)
    with pytest.raises(SetupError, match="no text"):
        replay_search(store, "r", recording, arm(MeasureAll()), kernels=[make_kernel("int x;")])


def test_the_summary_counts_what_was_saved_and_lost() -> None:
    def run(kind: Any, found: tuple[float, ...], measured: int) -> Replayed:
        return Replayed("a", "w", kind, 0, found, 10, measured, 2.0)

    facts = summarise(
        [
            run("space", (0.5,) * 12, 12),
            run("space", (0.7,) * 11 + (0.9,), 12),
            run("search", (0.99,), 4),
            run("search", (0.5,), 6),
        ]
    )
    assert facts["spaces"] == {"at_10": 0.6, "at_12": 0.7, "device_s": 4.0, "runs": 2}
    assert facts["searches"] == {
        "saved": 0.5,
        "within_2_percent": 0.5,
        "mean_loss": 0.255,
        "runs": 2,
    }
    assert summarise([]) == {}
