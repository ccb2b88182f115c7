"""The gate: what it says to measure, what it keeps, and that it never stops measuring."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kernelcast import Distribution, Failure, FailureKind, Gate, SetupError, Store, StoreError
from kernelcast.canonical import as_kernel
from kernelcast.events import Asked, GateStarted, Told
from kernelcast.policies import Conformal, Selective
from kernelcast.protocols import Forecaster
from kernelcast.types import Forecast, Observation, Query, Spend

SEED = """void kernel_entry(const float* x, float* y, long n) {
    for (long i = 0; i < n; ++i) y[i] = x[i];
}"""


def variant(number: int) -> str:
    """A kernel like no other, written as a model would: the loop is unrolled so many times."""
    body = " ".join(f"y[i + {k}] = x[i + {k}] * {number}.0f;" for k in range(1 + number % 5))
    return SEED.replace("++i", f"i += {number + 1}").replace("y[i] = x[i];", f"{{ {body} }}")


class Stated:
    """Forecasts what a table says, as sure as it says; learns nothing."""

    name = "stated"
    concurrency = 0
    refreshes = True

    def __init__(self, log2_speedup: dict[str, float], std: float = 0.05) -> None:
        self._log2_speedup, self._std = log2_speedup, std
        self.learnt: list[Observation] = []

    def quote(self, queries: object) -> Spend:
        del queries
        return {}

    def learn(self, observations: Sequence[Observation]) -> None:
        self.learnt += observations

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        return [
            Forecast(
                forecaster=self.name,
                anchor_id=query.anchor.id,
                anchor_log2_speedup=query.anchor_log2_speedup,
                distribution=Distribution.normal(
                    self._log2_speedup.get(query.candidate.source, 0.0) - query.anchor_log2_speedup,
                    self._std,
                ),
            )
            for query in queries
        ]


def speedup_of(number: int) -> float:
    return 1.0 + (number * 7919 % 100) / 100.0


def search(gate: Gate, numbers: range) -> list[int]:
    """Ask about kernels in order, measure what the gate says, and return the gaps between."""
    gaps, gap = [], 0
    for number in numbers:
        source = variant(number)
        if gate.ask(source, parent=SEED).measure:
            gate.tell(source, speedup=speedup_of(number))
            gaps.append(gap)
            gap = 0
        else:
            gap += 1
    return [*gaps, gap]


def begun(forecaster: Forecaster | None = None, **options: object) -> Gate:
    gate = Gate(language="cpp", device="cpu", forecaster=forecaster, **options)  # type: ignore[arg-type]
    assert gate.ask(SEED).measure
    gate.tell(SEED, speedup=1.0)
    return gate


def test_everything_is_measured_until_there_is_something_to_compare_with() -> None:
    gate = Gate(language="cpp")
    verdict = gate.ask(variant(1))
    assert verdict.measure
    assert verdict.forecast is None
    gate.tell(variant(1), failure="compile_error")
    assert gate.ask(variant(2)).forecast is None
    assert [outcome.seconds for outcome in gate.outcomes] == [None]
    gate.tell(variant(2), seconds=0.002)
    assert gate.best is not None
    assert gate.best.seconds == 0.002
    verdict = gate.ask(variant(3))
    assert verdict.forecast is not None
    assert verdict.p_new_best is not None
    assert 0.0 < verdict.p_new_best < 1.0


def test_true_forecasts_save_most_measurements_and_lose_nothing() -> None:
    numbers = range(1, 201)
    gate = begun(Stated({variant(n): math.log2(speedup_of(n)) for n in numbers}))
    search(gate, numbers)
    assert gate.to_measure < 0.5 * gate.asked
    assert gate.best is not None
    assert gate.best.speedup == max(map(speedup_of, numbers))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("policy", ["conformal", "selective"])
def test_a_forecaster_that_rules_everything_out_is_still_audited(policy: str, seed: int) -> None:
    hopeless = {variant(number): -6.0 for number in range(300)}
    gate = begun(Stated(hopeless), policy=policy, seed=seed)
    gaps = search(gate, range(300))
    assert max(gaps) <= 15
    assert len(gaps) > 20


def test_winners_among_the_audits_make_the_gate_measure_everything_again() -> None:
    """Each kernel is faster than all before, and the forecaster says that none is."""
    gate = begun(Stated({variant(number): -6.0 for number in range(200)}))
    for number in range(200):
        if gate.ask(variant(number)).measure:
            gate.tell(variant(number), speedup=2.0 + number)
    assert gate.to_measure == gate.asked


def test_a_gate_without_a_bound_counts_every_kernel_as_an_audit() -> None:
    gate = begun()
    actions = [gate.ask(variant(number)).action for number in range(10)]
    assert set(actions) == {"audit"}


def test_the_same_kernel_is_known_whatever_its_comments() -> None:
    gate = begun()
    verdict = gate.ask(f"// faster\n{SEED}")
    assert (verdict.measure, verdict.action) == (False, "known")
    assert verdict.known is not None
    assert verdict.known.speedup == 1.0
    assert gate.asked == 1


def test_a_kernel_that_was_not_told_of_gets_the_same_verdict_again() -> None:
    gate = begun(Stated({variant(n): -6.0 for n in range(100)}))
    for number in range(100):
        first = gate.ask(variant(number))
        again = gate.ask(variant(number))
        assert (first.measure, first.action, first.reason) == (
            again.measure,
            again.action,
            again.reason,
        )
        if first.measure:
            gate.tell(variant(number), speedup=1.0)
    assert gate.asked == 101


def test_forecasts_are_against_the_nearest_measured_ancestor() -> None:
    gate = begun()
    gate.ask(variant(1), parent=SEED)
    gate.tell(variant(1), speedup=3.0)
    gate.ask(variant(2), parent=SEED)  # never told of
    by_parent = gate.ask(variant(3), parent=SEED).forecast
    by_chain = gate.ask(variant(4), parent=variant(2)).forecast
    by_best = gate.ask(variant(5)).forecast
    assert by_parent is not None
    assert by_chain is not None
    assert by_best is not None
    assert by_parent.anchor_log2_speedup == by_chain.anchor_log2_speedup == 0.0
    assert by_best.anchor_log2_speedup == pytest.approx(1.585, abs=1e-3)


def test_the_forecaster_learns_failures_from_before_the_first_time_too() -> None:
    forecaster = Stated({})
    gate = Gate(language="cpp", device="cpu", forecaster=forecaster)
    gate.tell(variant(1), failure="wrong_result")
    gate.tell(SEED, seconds=0.5)
    gate.tell(variant(2), seconds=0.25)
    gate.tell(variant(3), failure="it hung")
    measurements = [observation.measurement for observation in forecaster.learnt]
    assert [m.log2_speedup for m in measurements] == [None, 1.0, None]
    failures = [m.failure for m in measurements if m.failure]
    assert failures == [
        Failure(kind=FailureKind.WRONG_RESULT, message="wrong_result"),
        Failure(kind=FailureKind.CRASH, message="it hung"),
    ]
    timing = measurements[1].timing
    assert timing is not None
    assert (timing.runtime_s, timing.reference_runtime_s) == (0.25, 0.5)


def test_a_best_that_is_told_again_as_wrong_is_the_best_no_more(tmp_path: Path) -> None:
    gate = begun(store=tmp_path / "gate.db")

    def best_of_store() -> str:
        with Store.open(tmp_path / "gate.db") as store:
            gating = store.open_run("gate-kernel@cpu").state.gating
        assert gating is not None
        assert gating.best is not None
        return gating.best.kernel_id

    def best() -> str:
        assert gate.best is not None
        assert best_of_store() == as_kernel(gate.best.source, "cpp").id
        return gate.best.source

    gate.tell(variant(1), speedup=3.0)
    gate.tell(variant(2), speedup=2.0)
    assert best() == variant(1)
    gate.tell(variant(1), failure="wrong_result")
    assert best() == variant(2)
    gate.tell(variant(2), speedup=0.5)
    assert best() == SEED
    assert [outcome.speedup for outcome in gate.outcomes] == [1.0, None, 0.5]


def test_wrong_use_is_refused_with_what_to_do() -> None:
    gate = begun()
    with pytest.raises(SetupError, match="tell one of these"):
        gate.tell(SEED)
    with pytest.raises(SetupError, match="tell one of these"):
        gate.tell(SEED, seconds=1.0, failure="crash")
    with pytest.raises(SetupError, match="speedup is 0"):
        gate.tell(SEED, speedup=0.0)
    with pytest.raises(SetupError, match="times and speedups are mixed"):
        gate.tell(variant(1), seconds=1.0)
    with pytest.raises(SetupError, match="pool_size=1"):
        Gate(language="cpp", policy=Selective())
    with pytest.raises(SetupError, match="no policy is called"):
        Gate(language="cpp", policy="threshold")
    Gate(language="cpp", policy=Conformal(pool_size=1, miss_target=0.2))


def test_a_gate_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    whole = begun()
    gaps = search(whole, range(60))
    path = tmp_path / "gate.db"
    begun(store=path)
    parts = []
    for start in range(0, 60, 10):
        gate = Gate(language="cpp", device="cpu", store=path)
        parts.append(search(gate, range(start, start + 10)))
    assert gate.asked == whole.asked
    assert gate.to_measure == whole.to_measure
    assert gate.best == whole.best
    assert sum(len(part) - 1 for part in parts) == len(gaps) - 1
    with Store.open(path) as store:
        run = store.open_run("gate-kernel@cpu")
        kinds = [type(event) for event in run.events()]
        assert kinds[0] is GateStarted
        assert kinds.count(Asked) == whole.asked
        assert kinds.count(Told) == whole.to_measure
        assert run.state.gating is not None
        assert run.state.gating.asked == whole.asked
        assert run.state.gating.to_measure == whole.to_measure
        assert run.replay() == run.state


def test_tasks_and_devices_of_a_store_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "gate.db"
    begun(store=path)
    assert Gate(language="cpp", device="cpu", store=path, task="other").best is None
    assert Gate(language="cpp", device="A100", store=path).best is None
    with pytest.raises(StoreError, match="give the gate another task"):
        Gate(language="cuda", device="cpu", store=path)


_WORKER = """
import sys
from kernelcast import Gate
from tests.test_gate import variant, speedup_of
gate = Gate(language="cpp", device="cpu", store=sys.argv[1])
first = int(sys.argv[2])
said = 0
for number in range(first, first + 15):
    if gate.ask(variant(number)).measure:
        said += 1
        gate.tell(variant(number), speedup=speedup_of(number))
print(said)
"""


def test_several_processes_share_a_gate(tmp_path: Path) -> None:
    path = tmp_path / "gate.db"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(path), str(100 * index)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        for index in range(3)
    ]
    said = [json.loads(worker.communicate()[0]) for worker in workers]
    gate = Gate(language="cpp", device="cpu", store=path)
    assert gate.asked == 45
    assert gate.to_measure == sum(said)
    numbers = [100 * index + n for index in range(3) for n in range(15)]
    assert all(gate.ask(variant(number)).action == "known" for number in numbers[:5])
    assert gate.best is not None
    assert gate.best.speedup == max(map(speedup_of, numbers))
