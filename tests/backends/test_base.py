"""The order of a measurement, whatever the language: on C++ kernels, with its parts watched."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelcast.backends import _preflight, base
from kernelcast.backends._arena import Arena
from kernelcast.backends._child import Child
from kernelcast.backends._library import LibraryChild
from kernelcast.backends._match import Envelope, MachineBusy, Match
from kernelcast.backends._timing import PRECISION, Precision
from kernelcast.backends._verify import KnownAnswer
from kernelcast.backends.cpp import CppBackend
from kernelcast.canonical import as_kernel, kernel_id
from kernelcast.devices import detect_cpu
from kernelcast.errors import ProblemError, SetupError
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

pytestmark = pytest.mark.measures

# What the tests here are about is not the timing: a block of two rounds is enough.
AT_ONCE = {
    effort: replace(precision, min_rounds=2, max_rounds=2)
    for effort, precision in PRECISION.items()
}
TEN_ROUNDS = Precision(min_rounds=10, max_rounds=10)
OTHER = SEED + "int other;\n"


class Witness(CppBackend):
    """Notes what it starts, and can kill it; it notes its pauses and does not make them."""

    def __init__(self, device_cap_s: float = 10.0) -> None:
        super().__init__(detect_cpu(), device_cap_s=device_cap_s)
        self.pauses: list[float] = []
        self._pause = self.pauses.append
        self.started: list[Child] = []
        self.doomed: set[int] = set()

    def start(self, arena: Arena, programs: Mapping[str, Path]) -> Child:
        child = super().start(arena, programs)
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
        self.answers: list[list[KnownAnswer]] = []
        self.precisions: list[Precision] = []
        self.seconds: list[float] = []

    def drawn(self, case: str) -> list[KnownAnswer]:
        return [each for some in self.answers for each in some if each.image.case.name == case]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    seen = Seen()
    measure = Envelope.measure

    def noted(
        self: Envelope,
        answers: Sequence[KnownAnswer],
        precision: Precision,
        device: Device,
        flush_bytes: int = 0,
        surprises: Sequence[KnownAnswer] = (),
    ) -> Timing | Failure:
        seen.answers.append(list(answers))
        seen.precisions.append(precision)
        began = time.perf_counter()
        outcome = measure(self, answers, precision, device, flush_bytes, surprises)
        seen.seconds.append(time.perf_counter() - began)
        return outcome

    monkeypatch.setattr(Envelope, "measure", noted)
    monkeypatch.setattr(base, "PRECISION", AT_ONCE)
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
    assert len(seen.answers) == 2
    assert (first.noise_log2 or 0.0) > 0.0
    assert sum(seen.seconds) <= first.device_s <= backend.quote(problem)[Resource.DEVICE_S]
    second = measured(backend, problem)
    assert len(seen.answers) == 3
    assert second.noise_log2 == first.noise_log2


def test_a_noise_floor_lasts_half_an_hour(
    backend: Witness, problem: Problem, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(backend, problem)
    now = time.monotonic
    for minutes, contests in ((29, 1), (31, 2)):
        seen.answers.clear()
        monkeypatch.setattr(time, "monotonic", lambda minutes=minutes: now() + 60 * minutes)
        measured(backend, problem)
        assert len(seen.answers) == contests


def test_measuring_the_seed_kernel_gives_the_noise_floor(
    backend: Witness, problem: Problem, seen: Seen
) -> None:
    floor = measured(backend, problem, SEED)
    assert len(seen.answers) == 1
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
    assert (measurement.device_s, measurement.noise_log2) == (0.0, None)
    assert seen.answers == []
    assert backend.started == []


# ------------------------------------------------------------------------------ effort and care


def test_more_effort_is_more_precision_and_more_hidden_cases(
    backend: Witness, problem: Problem, seen: Seen
) -> None:
    legal = Hidden(dimensions={"N": (1, 500), "K": (1, 16)})
    problem = problem.model_copy(update={"hidden": legal})
    measured(backend, problem, SEED)
    efforts: tuple[Effort, ...] = ("screening", "normal", "final")
    seen.answers.clear()
    seen.precisions.clear()
    for effort in efforts:
        assert measured(backend, problem, effort=effort).effort == effort
    assert seen.precisions == [AT_ONCE[effort] for effort in efforts]
    stated = {case.name for case in problem.cases}
    names = [[each.image.case.name for each in answers] for answers in seen.answers]
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
    monkeypatch.setattr(base, "_MOST_USES", 2)
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


def test_a_forged_oracle_runs_nothing_here(backend: Witness, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    source = f"open({str(marker)!r}, 'w')\n{REFERENCE}"
    forged = make_problem().model_copy(update={"oracle_source": source})
    with pytest.raises(ProblemError, match="does not load"):
        measured(backend, forged)
    assert not marker.exists()


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


def test_a_seed_that_is_wrong_is_a_problem_error(backend: Witness) -> None:
    wrong = make_problem(seed_source=SEED.replace("sum += ", "sum -= "))
    with pytest.raises(ProblemError, match=r"(?s)failed \(wrong_result.*reference\.py"):
        measured(backend, wrong, SEED)


# -------------------------------------------------------------------------------- a busy machine

ENDLESS = SEED.replace("{", '{ for (;;) asm volatile("");', 1)
ASLEEP = "#include <unistd.h>\n" + SEED.replace("{", "{ for (;;) usleep(100000);", 1)
BUSY = MachineBusy(0.03, 600.0)


@pytest.mark.parametrize("request_number", [0, 8], ids=["verifying", "timing"])
@pytest.mark.parametrize("side", [0, 1], ids=["candidate", "reference"])
def test_a_process_that_the_machine_starves_is_started_again(
    problem: Problem, seen: Seen, monkeypatch: pytest.MonkeyPatch, side: int, request_number: int
) -> None:
    run = LibraryChild.run
    requests = iter(range(1_000))
    with closing(Witness(device_cap_s=3.0)) as backend:
        measured(backend, problem, SEED)
        backend.started.clear()
        backend.pauses.clear()
        backend._time_factor = 1

        def stopped(child: LibraryChild, *request: Any) -> float | Failure:
            if child is backend.started[side] and next(requests) == request_number:
                assert child._worker_pid is not None
                os.kill(child._worker_pid, signal.SIGSTOP)
            return run(child, *request)

        monkeypatch.setattr(LibraryChild, "run", stopped)
        # Ten rounds, so that those before the stop are not enough.
        monkeypatch.setattr(base, "PRECISION", dict.fromkeys(PRECISION, TEN_ROUNDS))
        measurement = measured(backend, problem)
        assert measurement.timing is not None, measurement.failure
        assert len(measurement.timing.cases[0].log2_ratios) == 10
        assert len(backend.started) >= 4
        assert backend.pauses[0] == 1.0
        # The next one begins with as much time as this one needed.
        assert backend._time_factor == min(2 ** len(backend.pauses), 8)
        assert measurement.device_s <= 3.0
        assert not any(child.alive for child in backend.started)


def test_a_kernel_that_computes_for_ever_is_a_timeout(
    backend: Witness, problem: Problem, seen: Seen
) -> None:
    failure = measured(backend, problem, ENDLESS).failure
    assert failure is not None
    assert failure.kind is FailureKind.TIMEOUT
    assert "of which it computed for" in failure.message


def test_a_kernel_that_sleeps_for_ever_is_a_timeout_at_once(
    backend: Witness, problem: Problem, seen: Seen
) -> None:
    measured(backend, problem, SEED)
    backend.started.clear()
    failure = measured(backend, problem, ASLEEP).failure
    assert failure is not None
    assert failure.kind is FailureKind.TIMEOUT
    assert "of which it computed for 0.0" in failure.message
    assert len(backend.started) == 2


@pytest.mark.parametrize("seed_source", [ENDLESS, ASLEEP], ids=["computes", "sleeps"])
def test_a_seed_that_is_too_slow_is_told_with_what_to_do(seed_source: str) -> None:
    with (
        closing(Witness(device_cap_s=2.0)) as backend,
        pytest.raises(SetupError, match="too slow to be measured in 2 s") as told,
    ):
        measured(backend, make_problem(seed_source=seed_source), seed_source)
    assert "device_cap_s = 6" in str(told.value)
    assert "kernelcast search --config search.toml" in str(told.value)
    assert "problem.toml" in str(told.value)
    assert not any(child.alive for child in backend.started)


def test_a_machine_that_stays_busy_fails_a_candidate_and_says_why(
    backend: Witness, problem: Problem, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(backend, problem, SEED)
    monkeypatch.setattr(Match, "play", never)
    measurement = measured(backend, problem)
    assert measurement.failure is not None
    assert measurement.failure.kind is FailureKind.TIMEOUT
    assert "3% of a core for 10 minutes" in measurement.failure.message
    assert "the kernel may be fast" in measurement.failure.message
    assert measurement.device_s <= backend.quote(problem)[Resource.DEVICE_S]


def test_a_machine_that_stays_busy_when_a_search_begins_is_told_with_what_to_do(
    backend: Witness, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Match, "play", never)
    with pytest.raises(SetupError, match=r"3% of a core for 10 minutes.*kernelcast resume"):
        measured(backend, problem, SEED)


def test_the_reference_is_tried_more_often_than_a_candidate(
    backend: Witness, problem: Problem, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []
    play = Match.play

    def noted(match: Match) -> Timing | Failure:
        tries.append(match.tries)
        return play(match)

    monkeypatch.setattr(Match, "play", noted)
    measured(backend, problem, SEED)
    measured(backend, problem)
    assert tries == [16, 8]


def test_a_noise_floor_that_cannot_be_measured_ends_no_search(
    backend: Witness,
    problem: Problem,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    play = Match.play
    busy = iter([True, False, False, True, False])
    monkeypatch.setattr(
        Match, "play", lambda match: never(match) if next(busy, False) else play(match)
    )
    now, minutes = time.monotonic, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now() + 60 * minutes)
    cautious = measured(backend, problem)
    assert cautious.timing is not None
    assert cautious.noise_log2 == math.log2(1.25)
    assert "noise floor of filter could not be measured" in caplog.text
    assert "A cautious one, of 25.0%" in caplog.text
    assert measured(backend, problem).noise_log2 == cautious.noise_log2  # for five minutes
    minutes = 6.0
    backend._take_noise(problem, 0.07, age_s=31 * 60)
    older = measured(backend, problem)
    assert older.timing is not None
    assert older.noise_log2 == 0.07
    assert "The last one, of 5.0%" in caplog.text
    minutes = 12.0
    assert measured(backend, problem).noise_log2 != 0.07


def never(match: Match) -> Timing | Failure:
    raise BUSY


# -------------------------------------------------------------------------------------- builds


def test_old_builds_are_removed(
    backend: Witness, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_KEPT_BUILDS", 2)
    for count in range(4):
        source = f"{SEED}int number = {count};\n"
        kernel = Kernel(id=kernel_id(source, "cpp"), language="cpp", source=source)
        backend.inspect(problem, kernel)
    assert len(list(backend.directory.iterdir())) == 2


def test_builds_are_kept_up_to_a_total_size(
    backend: Witness, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_KEPT_BYTES", 6 << 20)
    kernels = [
        as_kernel(f"{SEED}__attribute__((used)) static char table[{size} << 20] = {{1}};\n", "cpp")
        for size in (2, 3, 2, 1)
    ]
    for kernel in kernels:
        assert backend.inspect(problem, kernel).failure is None
    folders = list(backend.directory.iterdir())
    assert len(folders) == 2
    assert sum(map(base._folder_bytes, folders)) <= 6 << 20


def test_a_build_that_is_too_large_is_a_failure_and_leaves_no_files(
    backend: Witness, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_MOST_BUILD_BYTES", 4 << 20)
    table = "__attribute__((used)) static char table[5 << 20] = {1};\n"
    failure = backend.inspect(problem, as_kernel(f"{SEED}{table}", "cpp")).failure
    assert failure is not None
    assert failure.kind is FailureKind.COMPILE_ERROR
    assert "5 MB; 4 MB is the most" in failure.message
    assert list(backend.directory.iterdir()) == []


def test_a_library_may_hold_tables_of_16_mb_and_not_more_than_32(
    backend: Witness, problem: Problem
) -> None:
    for size, message in ((16, None), (33, "the library has more than 32 MB")):
        table = f"__attribute__((used)) static char table[{size} << 20] = {{1}};\n"
        failure = backend.inspect(problem, as_kernel(f"{SEED}{table}", "cpp")).failure
        assert (failure.message if failure else None) == message


def test_a_source_that_is_too_long_is_a_failure(backend: Witness, problem: Problem) -> None:
    failure = backend.inspect(problem, as_kernel(SEED + " " * (1 << 18), "cpp")).failure
    assert failure is not None
    assert "262,144 is the most" in failure.message
    assert list(backend.directory.iterdir()) == []


def test_problems_that_are_not_measured_any_more_are_let_go(
    backend: Witness, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_KEPT_PROBLEMS", 1)
    problems = [make_problem(N=size) for size in (1000, 2000)]
    for problem in problems:
        measured(backend, problem, SEED)
    assert list(backend._problems) == [problems[-1].id]


def test_a_case_too_large_for_the_arena_is_left_out(backend: Witness, seen: Seen) -> None:
    """One that is only stated to be legal, that is; stated cases decide how large it is."""
    legal = Hidden(dimensions={"N": (1 << 24, 1 << 24), "K": (1, 1)})
    problem = make_problem().model_copy(update={"hidden": legal})
    assert measured(backend, problem, SEED).failure is None
    sizes = {each.image.case.dimensions["N"] for each in seen.answers[0]}
    assert sizes == {40_000, 77}
