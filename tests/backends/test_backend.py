"""The order of a measurement, whatever the language: on C++ kernels, with its parts watched."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kernelcast.backends import _backend, _preflight
from kernelcast.backends._arena import Arena
from kernelcast.backends._child import Child
from kernelcast.backends._envelope import Envelope
from kernelcast.backends._timing import PRECISION, Precision
from kernelcast.backends._verify import Sample
from kernelcast.backends.cpp import CppBackend, CppChild
from kernelcast.canonical import kernel_id
from kernelcast.devices import detect_cpu
from kernelcast.errors import ProblemError
from kernelcast.types import (
    Device,
    Effort,
    Failure,
    FailureKind,
    Hidden,
    Kernel,
    Measurement,
    Problem,
    Resource,
    Timing,
    Tolerance,
)

from .conftest import REFERENCE, SEED, make_problem
from .test_cpp import leftovers

pytestmark = pytest.mark.alone

# What the tests here are about is not the timing: a round is enough.
AT_ONCE = Precision(min_rounds=2, max_rounds=2)
OTHER = SEED + "int other;\n"


class Witness(CppBackend):
    """Notes what it starts and what is measured, and can kill the processes it starts."""

    def __init__(self) -> None:
        super().__init__(detect_cpu())
        self.started: list[Child] = []
        self.doomed: set[int] = set()

    def _start(self, arena: Arena, programs: Mapping[str, Path]) -> Child:
        child = super()._start(arena, programs)
        self.started.append(child)
        if len(self.started) - 1 in self.doomed:
            child.load(10.0)
            os.kill(child.pid, signal.SIGKILL)
            while child.alive:
                time.sleep(0.001)
            child.load = lambda timeout_s: None  # type: ignore[method-assign]
        return child


class Seen:
    """What envelopes were asked to measure."""

    def __init__(self) -> None:
        self.samples: list[list[Sample]] = []
        self.precisions: list[Precision] = []
        self.seconds: list[float] = []

    def drawn(self, case: str) -> list[Sample]:
        return [each for some in self.samples for each in some if each.image.case.name == case]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    seen = Seen()
    measure = Envelope.measure

    def noted(
        self: Envelope,
        samples: Sequence[Sample],
        precision: Precision,
        device: Device,
        flush_bytes: int = 0,
    ) -> Timing | Failure:
        seen.samples.append(list(samples))
        seen.precisions.append(precision)
        began = time.perf_counter()
        outcome = measure(self, samples, AT_ONCE, device, flush_bytes)
        seen.seconds.append(time.perf_counter() - began)
        return outcome

    monkeypatch.setattr(Envelope, "measure", noted)
    return seen


@pytest.fixture
def backend() -> Iterator[Witness]:
    backend = Witness()
    yield backend
    backend.close()


def measured(
    backend: CppBackend, problem: Problem, source: str = OTHER, effort: Effort = "screening"
) -> Measurement:
    kernel = Kernel(id=kernel_id(source, "cpp"), language="cpp", source=source)
    return backend.measure(problem, kernel, 1, effort)


# ---------------------------------------------------------------------------------- noise floor


def test_an_unknown_noise_floor_is_measured_first(
    backend: Witness, problem: Problem, seen: Seen
) -> None:
    first = measured(backend, problem)
    assert len(seen.samples) == 2
    assert first.noise_log2 > 0.0
    assert sum(seen.seconds) <= first.device_s <= backend.quote(problem)[Resource.DEVICE_S]
    second = measured(backend, problem)
    assert len(seen.samples) == 3
    assert second.noise_log2 == first.noise_log2


def test_a_noise_floor_lasts_half_an_hour(
    backend: Witness, problem: Problem, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(backend, problem)
    now = time.monotonic
    for minutes, contests in ((29, 1), (31, 2)):
        seen.samples.clear()
        monkeypatch.setattr(time, "monotonic", lambda minutes=minutes: now() + 60 * minutes)
        measured(backend, problem)
        assert len(seen.samples) == contests


def test_measuring_the_seed_kernel_gives_the_noise_floor(
    backend: Witness, problem: Problem, seen: Seen
) -> None:
    floor = measured(backend, problem, SEED)
    assert len(seen.samples) == 1
    assert floor.timing is not None
    assert floor.noise_log2 == max(abs(floor.timing.low), abs(floor.timing.high))
    assert measured(backend, problem).noise_log2 == floor.noise_log2
    other = make_problem(N=30_000)
    assert backend._noise_is_old(other)


def test_what_does_not_compile_costs_no_device_time(
    backend: Witness, problem: Problem, seen: Seen
) -> None:
    measurement = measured(backend, problem, "this is no program")
    assert measurement.failure is not None
    assert measurement.failure.kind is FailureKind.COMPILE_ERROR
    assert (measurement.device_s, measurement.noise_log2) == (0.0, 0.0)
    assert seen.samples == []
    assert backend.started == []


# ------------------------------------------------------------------------------ effort and care


def test_more_effort_is_more_precision_and_more_hidden_cases(
    backend: Witness, problem: Problem, seen: Seen
) -> None:
    legal = Hidden(dimensions={"N": (1, 500), "K": (1, 16)})
    problem = problem.model_copy(update={"hidden": legal})
    measured(backend, problem, SEED)
    efforts: tuple[Effort, ...] = ("screening", "normal", "final")
    seen.samples.clear()
    seen.precisions.clear()
    for effort in efforts:
        assert measured(backend, problem, effort=effort).effort == effort
    assert seen.precisions == [PRECISION[effort] for effort in efforts]
    stated = {case.name for case in problem.cases}
    names = [[each.image.case.name for each in samples] for samples in seen.samples]
    assert all(stated <= set(each) for each in names)
    assert [len(each) - len(stated) for each in names] == [3, 6, 9]


def test_more_effort_takes_more_rounds(problem: Problem) -> None:
    backend = CppBackend(detect_cpu())
    try:
        measured(backend, problem, SEED)
        screened, final = (
            measured(backend, problem, effort=effort).timing for effort in ("screening", "final")
        )
    finally:
        backend.close()
    assert screened is not None
    assert final is not None
    assert len(screened.cases[0].log2_ratios) < len(final.cases[0].log2_ratios)


def test_the_machine_and_the_sandbox_are_part_of_the_measurement(
    backend: Witness, problem: Problem, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_preflight, "settings", lambda _device: ("planted",))
    measurement = measured(backend, problem)
    assert "planted" in measurement.conditions
    assert measurement.sandbox == backend.level
    failed = measured(backend, problem, "this is no program")
    assert "planted" in failed.conditions


# --------------------------------------------------------------------------- samples of a problem


def test_a_sample_serves_a_few_screenings_and_no_final(
    backend: Witness, problem: Problem, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_backend, "_MOST_USES", 2)
    for _ in range(3):
        measured(backend, problem)  # the first measures the noise as well: four contests
    drawn = seen.drawn("main")
    assert [each is drawn[0] for each in drawn] == [True, True, False, False]
    assert drawn[2] is drawn[3]
    measured(backend, problem)  # draws one that would serve once more
    measured(backend, problem, effort="final")
    *earlier, last = seen.drawn("main")
    assert len(earlier) == 5
    assert all(each is not last for each in earlier)


def test_hidden_shapes_are_new_every_time(backend: Witness, problem: Problem, seen: Seen) -> None:
    legal = Hidden(dimensions={"N": (1, 5000), "K": (1, 16)})
    problem = problem.model_copy(update={"hidden": legal})
    for _ in range(3):
        measured(backend, problem)
    shapes = {tuple(each.image.case.dimensions.values()) for each in seen.drawn("hidden-0")}
    assert len(shapes) > 1


def test_a_problem_that_cannot_tell_right_from_wrong_is_refused(backend: Witness) -> None:
    careless = make_problem().model_copy(update={"tolerance": Tolerance(rtol=0.0, atol=100.0)})
    with pytest.raises(ProblemError, match="a kernel that ignores its inputs would be right"):
        measured(backend, careless)
    assert leftovers(backend) == []


def test_an_oracle_that_fails_leaves_no_process(backend: Witness) -> None:
    source = REFERENCE.replace("    return", "    if N > 1000: 1 / 0\n    return")
    broken = make_problem().model_copy(update={"oracle_source": source})
    with pytest.raises(ProblemError, match="ZeroDivisionError"):
        measured(backend, broken)
    assert leftovers(backend) == []


# -------------------------------------------------------------------------------- the reference


def test_a_reference_that_dies_is_started_again(
    backend: Witness, problem: Problem, seen: Seen
) -> None:
    measured(backend, problem, SEED)
    backend.started.clear()
    backend.doomed = {1}  # the candidate is started first
    measurement = measured(backend, problem)
    assert measurement.timing is not None, measurement.failure
    assert len(backend.started) == 4
    assert not any(child.alive for child in backend.started)


def test_a_reference_that_dies_every_time_is_a_problem_error(
    backend: Witness, problem: Problem, seen: Seen
) -> None:
    measured(backend, problem, SEED)
    backend.started.clear()
    backend.doomed = {1, 3, 5}
    with pytest.raises(ProblemError, match=r"seed kernel of filter failed \(crash: killed"):
        measured(backend, problem)
    assert not any(child.alive for child in backend.started)


def test_a_second_try_that_has_no_time_left_ends_no_search(
    backend: Witness, problem: Problem, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(backend, problem, SEED)
    backend.started.clear()
    backend.doomed = {1}
    monkeypatch.setattr(_backend, "_load_timeout", lambda deadline: 0.0 if late() else 10.0)

    def late() -> bool:
        return len(backend.started) > 2

    failure = measured(backend, problem).failure
    assert failure is not None
    assert failure.kind is FailureKind.TIMEOUT
    assert "in the time there was" in failure.message
    assert not any(child.alive for child in backend.started)


def test_a_candidate_that_dies_is_not_tried_again(
    backend: Witness, problem: Problem, seen: Seen
) -> None:
    measured(backend, problem, SEED)
    backend.started.clear()
    backend.doomed = {0}
    failure = measured(backend, problem).failure
    assert failure is not None
    assert failure.kind is FailureKind.CRASH
    assert len(backend.started) == 2


@pytest.mark.parametrize("side", [0, 1], ids=["candidate", "reference"])
def test_a_process_that_the_machine_stalled_is_nobodys_failure(
    backend: Witness, problem: Problem, seen: Seen, monkeypatch: pytest.MonkeyPatch, side: int
) -> None:
    """Late without having computed; whoever computes for ever is not tried again."""
    measured(backend, problem, SEED)
    backend.started.clear()
    run = CppChild.run
    requests = iter(range(1_000))

    def stalled(child: CppChild, *request: Any) -> float | Failure:
        # After verification: what a call may take is known by then.
        if child is backend.started[side] and next(requests) == 8:
            assert child._worker_pid is not None
            os.kill(child._worker_pid, signal.SIGSTOP)
        return run(child, *request)

    monkeypatch.setattr(CppChild, "run", stalled)
    measurement = measured(backend, problem)
    assert measurement.timing is not None, measurement.failure
    assert len(backend.started) == 4
    backend.started.clear()
    endless = measured(backend, problem, SEED.replace("{", '{ for (;;) asm volatile("");', 1))
    assert endless.failure is not None
    assert endless.failure.kind is FailureKind.TIMEOUT
    assert len(backend.started) == 2


def test_a_seed_that_is_wrong_is_a_problem_error(backend: Witness) -> None:
    wrong = make_problem(seed_source=SEED.replace("sum += ", "sum -= "))
    with pytest.raises(ProblemError, match=r"failed \(wrong_result.*reference\.py"):
        measured(backend, wrong, SEED)


# -------------------------------------------------------------------------------------- builds


def test_old_builds_are_removed(
    backend: Witness, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_backend, "_KEPT_BUILDS", 2)
    for count in range(4):
        source = f"{SEED}int number = {count};\n"
        kernel = Kernel(id=kernel_id(source, "cpp"), language="cpp", source=source)
        backend.inspect(problem, kernel)
    assert len(list(backend._directory.iterdir())) == 2


def test_problems_that_are_not_measured_any_more_are_let_go(
    backend: Witness, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_backend, "_KEPT_PROBLEMS", 1)
    problems = [make_problem(N=size) for size in (1000, 2000)]
    for problem in problems:
        measured(backend, problem, SEED)
    assert list(backend._stores) == [problems[-1].id]


def test_a_case_too_large_for_the_arena_is_left_out(backend: Witness, seen: Seen) -> None:
    """One that is only stated to be legal, that is; stated cases decide how large it is."""
    legal = Hidden(dimensions={"N": (1 << 24, 1 << 24), "K": (1, 1)})
    problem = make_problem().model_copy(update={"hidden": legal})
    assert measured(backend, problem, SEED).failure is None
    sizes = {each.image.case.dimensions["N"] for each in seen.samples[0]}
    assert sizes == {40_000, 77}
