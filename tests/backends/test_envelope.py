"""The sealed envelope: on children made of Python, and with real kernels that cheat."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from kernelcast.backends._arena import Arena
from kernelcast.backends._child import Child
from kernelcast.backends._inputs import FreshInputs, varied_cases
from kernelcast.backends._match import Envelope, ReferenceLost
from kernelcast.backends._timing import OutOfTime, Precision
from kernelcast.backends._verify import KnownAnswer
from kernelcast.backends.cpp import CppBackend
from kernelcast.canonical import kernel_id
from kernelcast.devices import detect_cpu
from kernelcast.errors import ProblemError
from kernelcast.testing import FAKE_DEVICE, synthetic_problem
from kernelcast.types import (
    Case,
    Device,
    Effort,
    Failure,
    FailureKind,
    Fill,
    Hidden,
    Kernel,
    Measurement,
    Problem,
    Special,
    Timing,
    Tolerance,
)

from .conftest import SEED, make_problem, plain_reference

pytestmark = pytest.mark.measures

Kernelish = Callable[[NDArray[Any], NDArray[Any]], None]
CRASH = Failure(kind=FailureKind.CRASH, message="planted")
TIMEOUT = Failure(kind=FailureKind.TIMEOUT, message="no answer")
QUICK = Precision(min_rounds=6, max_rounds=6)
SIZE = 300


def double(x: NDArray[Any], y: NDArray[Any]) -> None:
    y[:] = 2.0 * x


class FakeChild:
    """A kernel written in Python, whose calls take as long as it says."""

    on_cpu = True

    def __init__(
        self, arena: Arena, kernel: Kernelish = double, call_s: float = 1e-3, idle_s: float = 1e-5
    ) -> None:
        self.arena = arena
        self.kernel = kernel
        self.call_s, self.idle_s = call_s, idle_s
        self.memory = np.zeros(arena.size, np.uint8)
        self.core, self.cores = 0, [0]
        self.deadline = 0.0
        self.starved = False
        self.aside_s = 0.0
        self.copies_s = 0.0
        self.copies_of_a_call_s = 0.0
        self.idle_cpu_per_request_s = 0.0
        self.seen: list[tuple[str, int, int, bytes]] = []
        self.prepared: list[tuple[str, int, int]] = []
        self.timeouts_s: list[tuple[str, float]] = []
        self.fail_at: int | None = None
        self.failure = CRASH

    def run(self, case: str, calls: int, base: int, timeout_s: float) -> float | Failure:
        layout = self.arena.layouts[case]
        content = []
        for call in range(calls):
            slot = self.memory[base + call * layout.stride :]
            x, y = (
                slot[offset : offset + length].view("float32")
                for offset, length in zip(layout.offsets, layout.lengths, strict=True)
            )
            content.append(x.tobytes())
            self.kernel(x, y)
        self.seen.append((case, calls, base, b"".join(content)))
        self.timeouts_s.append((case, timeout_s))
        self.aside_s += self.idle_cpu_per_request_s
        self.copies_s = calls * self.copies_of_a_call_s
        if len(self.seen) == self.fail_at:
            return self.failure
        return self.idle_s + calls * self.call_s

    def prepare(self, case: str, calls: int, base: int, timeout_s: float) -> Failure | None:
        self.prepared.append((case, calls, base))
        return None

    def idle(self, case: str, calls: int, timeout_s: float) -> float | Failure:
        return self.idle_s

    def audit(self) -> None:
        pass

    def inspect(self, *, whole: bool = True) -> Failure | None:
        return CRASH if len(self.seen) == self.fail_at else None


def problem_of(*cases: Case, tolerance: float = 1e-6) -> Problem:
    stated = cases or (
        Case(name="main", dimensions={"N": SIZE}),
        Case(name="small", dimensions={"N": 40}, timed=False),
    )
    return synthetic_problem().model_copy(
        update={"cases": stated, "tolerance": Tolerance(rtol=tolerance, atol=0.0)}
    )


class Contest:
    """Both children, and what an envelope needs beside them."""

    def __init__(
        self,
        candidate: Kernelish = double,
        reference: Kernelish = double,
        *,
        problem: Problem | None = None,
        hidden: Sequence[Case] = (),
        surprises: Sequence[Case] = (),
        deadline_s: float = 60.0,
    ) -> None:
        self.rng = np.random.default_rng(0)
        self.problem = problem or problem_of()
        self.surprises = surprises
        self.arena = Arena.of(self.problem, [*hidden, *surprises])
        self.candidate, self.reference = (
            FakeChild(self.arena, each) for each in (candidate, reference)
        )
        fresh = {
            case.name: FreshInputs(self.problem, case, self.rng)
            for case in self.problem.timed_cases
        }
        self.envelope = Envelope(
            self.arena,
            cast(Child, self.candidate),
            cast(Child, self.reference),
            fresh,
            self.rng,
            time.perf_counter() + deadline_s,
        )

    def measure(
        self, precision: Precision = QUICK, device: Device = FAKE_DEVICE
    ) -> Timing | Failure:
        answer = plain_reference(self.problem)
        late = {case.name for case in self.surprises}
        cases = [case for case in self.arena.cases.values() if case.name not in late]
        answers = [KnownAnswer.draw(self.problem, case, answer, self.rng) for case in cases]
        surprises = [
            KnownAnswer.draw(self.problem, case, answer, self.rng) for case in self.surprises
        ]
        return self.envelope.measure(answers, precision, device, surprises=surprises)

    def failure(self) -> Failure:
        outcome = self.measure()
        assert isinstance(outcome, Failure)
        return outcome

    def timing(self) -> Timing:
        outcome = self.measure()
        assert isinstance(outcome, Timing), outcome
        return outcome


def acting_from(call: int, otherwise: Kernelish) -> Kernelish:
    """Honest for so many calls."""
    calls = iter(range(10**9))

    def kernel(x: NDArray[Any], y: NDArray[Any]) -> None:
        (double if next(calls) < call else otherwise)(x, y)

    return kernel


def test_every_request_has_new_content_the_same_for_both() -> None:
    contest = Contest()
    contest.timing()
    ours, theirs = contest.candidate.seen[2:], contest.reference.seen[2:]
    assert len(ours) == 2 + QUICK.max_rounds
    assert ours == theirs  # case, calls, address and content
    assert len({content for *_, content in ours}) == len(ours)
    assert len({base for _, _, base, _ in ours}) > 1


def test_every_call_of_a_batch_has_its_own_content() -> None:
    contest = Contest()
    contest.candidate.call_s = contest.reference.call_s = 20e-6
    contest.timing()
    batched = [(calls, content) for _, calls, _, content in contest.candidate.seen if calls > 1]
    assert batched
    for calls, content in batched:
        size = len(content) // calls
        assert len({content[at : at + size] for at in range(0, len(content), size)}) == calls


@pytest.mark.parametrize("honest_calls", [0, 1, 2, 4, 7])
def test_one_wrong_output_in_any_call_is_found(honest_calls: int) -> None:
    def nearly(x: NDArray[Any], y: NDArray[Any]) -> None:
        double(x, y)
        y[-1] += 1e-3

    failure = Contest(acting_from(honest_calls, nearly)).failure()
    assert failure.kind is FailureKind.WRONG_RESULT
    assert "1 of" in failure.message


@pytest.mark.parametrize("honest_calls", [0, 5])
def test_an_answer_of_an_earlier_call_is_poisoned_away(honest_calls: int) -> None:
    def leave(x: NDArray[Any], y: NDArray[Any]) -> None:
        """Trust that the right answer lies there already."""

    failure = Contest(acting_from(honest_calls, leave)).failure()
    assert failure.kind is FailureKind.WRONG_RESULT
    assert "nan" in failure.message


@pytest.mark.parametrize("honest_calls", [0, 5])
def test_a_changed_input_is_cheating(honest_calls: int) -> None:
    def zero(x: NDArray[Any], y: NDArray[Any]) -> None:
        x[:] = 0
        y[:] = 0

    failure = Contest(acting_from(honest_calls, zero)).failure()
    assert failure.kind is FailureKind.CHEATING


@pytest.mark.parametrize("call", [1, 2, 3, 8])
def test_a_candidates_failure_is_its_own(call: int) -> None:
    contest = Contest()
    contest.candidate.fail_at = call
    failure = contest.failure()
    assert failure.kind is CRASH.kind
    case = "main" if call != 2 else "small"
    assert failure.message.startswith(f"case {case}: planted\ncase {case} has N=")
    assert len(contest.candidate.seen) == call


@pytest.mark.parametrize("call", [1, 2, 3, 8])
def test_a_reference_that_dies_is_nobodys_failure(call: int) -> None:
    contest = Contest()
    contest.reference.fail_at = call
    with pytest.raises(ReferenceLost, match="planted"):
        contest.measure()


def test_a_reference_that_is_wrong_is_nobodys_failure() -> None:
    def triple(x: NDArray[Any], y: NDArray[Any]) -> None:
        y[:] = 3.0 * x

    contest = Contest(reference=triple)
    with pytest.raises(ReferenceLost) as lost:
        contest.measure()
    assert lost.value.failure.kind is FailureKind.WRONG_RESULT
    assert contest.candidate.seen == []


@pytest.mark.parametrize("side", ["candidate", "reference"])
@pytest.mark.parametrize("call", [1, 3])
def test_a_starved_process_has_not_failed(side: str, call: int) -> None:
    contest = Contest()
    child: FakeChild = getattr(contest, side)
    child.fail_at, child.failure = call, TIMEOUT
    child.starved = True
    with pytest.raises(OutOfTime):
        contest.measure()


def test_what_gives_no_answer_although_it_was_not_starved_has_failed() -> None:
    contest = Contest()
    contest.candidate.fail_at, contest.candidate.failure = 6, TIMEOUT
    assert contest.failure().message.startswith("case main: no answer\n")
    contest = Contest()
    contest.reference.fail_at, contest.reference.failure = 6, TIMEOUT
    with pytest.raises(ReferenceLost) as lost:
        contest.measure()
    assert lost.value.failure == TIMEOUT


def test_no_request_is_made_when_no_time_is_left() -> None:
    contest = Contest(deadline_s=0.0)
    with pytest.raises(OutOfTime):
        contest.measure()
    assert contest.candidate.seen == contest.reference.seen == []


@pytest.mark.parametrize("side", ["candidate", "reference"])
def test_whoever_is_running_at_the_deadline_has_not_failed(side: str) -> None:
    contest = Contest(deadline_s=0.5)
    child: FakeChild = getattr(contest, side)
    # Two requests verify, two warm up, and then have two calls; the ninth is in the fifth round.
    child.fail_at, child.failure = 9, TIMEOUT
    child.kernel = acting_from(12, lambda x, y: time.sleep(0.6))
    timing = contest.timing()
    assert not timing.resolved
    assert len(timing.cases[0].log2_ratios) == 4


def test_very_much_slower_calls_than_the_references_are_cut_short() -> None:
    contest = Contest()
    contest.reference.call_s = 0.5
    contest.candidate.call_s = 0.5
    contest.timing()
    for case, timeout_s in contest.candidate.timeouts_s:
        assert timeout_s == pytest.approx(1.0 + 20 * 0.5, rel=0.01), case
    assert contest.reference.timeouts_s[0][1] == pytest.approx(60.0, rel=0.1)  # not known yet


def test_no_request_may_outlast_the_deadline() -> None:
    contest = Contest(deadline_s=0.4)
    contest.timing()
    assert all(timeout_s <= 0.4 for _, timeout_s in contest.candidate.timeouts_s)


def test_the_overhead_is_that_of_the_trusted_process() -> None:
    """A candidate that makes its own idle requests slow would otherwise seem to do nothing."""
    contest = Contest()
    plain = contest.timing()
    slow_stub = Contest()
    slow_stub.candidate.idle_s = 0.9e-3
    timing = slow_stub.timing()
    assert timing.runtime_s >= plain.runtime_s
    assert timing.reference_runtime_s == pytest.approx(plain.reference_runtime_s)
    assert timing.log2_speedup < 0.0


def test_cpu_time_outside_of_calls_is_cheating() -> None:
    contest = Contest()
    contest.candidate.idle_cpu_per_request_s = 1e-3
    failure = contest.failure()
    assert failure.kind is FailureKind.CHEATING
    assert "outside of its calls" in failure.message
    assert len(contest.candidate.seen) < 16  # it is found on the way
    noisy = Contest()  # what a machine costs, it costs both
    for child in (noisy.candidate, noisy.reference):
        child.idle_cpu_per_request_s = 1e-3
    noisy.timing()


@pytest.mark.parametrize(
    ("theirs_s", "reference_s", "late_s"),
    [
        (0.0, 0.0, 0.0),
        (1e-3, 1e-3, 0.0),
        (1.29e-3, 1e-3, 0.29e-3),
        (2e-3, 1e-3, 1e-3),
        (3e-3, 0.0, 3e-3),
        (0.0, 9e-3, 0.0),  # copies that take less earn nothing
    ],
)
def test_copies_that_take_longer_than_the_references_are_charged(
    theirs_s: float, reference_s: float, late_s: float
) -> None:
    """A result that is computed when it is copied is late."""
    contest = Contest()
    for child, copies_s in ((contest.candidate, theirs_s), (contest.reference, reference_s)):
        child.idle_s, child.copies_of_a_call_s = 0.0, copies_s
        child.call_s = 20e-3  # long enough that a request is one call
    timing = contest.timing()
    assert timing.reference_runtime_s == pytest.approx(20e-3)
    assert timing.runtime_s == pytest.approx(20e-3 + late_s)


def test_a_process_is_prepared_before_its_slots_have_content() -> None:
    contest = Contest()
    contest.timing()
    for child in (contest.candidate, contest.reference):
        assert child.prepared == [(case, calls, base) for case, calls, base, _ in child.seen]


def test_copies_of_a_batch_are_charged_by_the_call() -> None:
    contest = Contest()
    for child in (contest.candidate, contest.reference):
        child.call_s, child.idle_s = 20e-6, 0.0
        child.copies_of_a_call_s = 10e-6
    contest.candidate.copies_of_a_call_s = 52.5e-6
    timing = contest.timing()
    calls = max(calls for _, calls, _, _ in contest.candidate.seen)
    assert calls > 10
    assert timing.reference_runtime_s == pytest.approx(20e-6)
    assert timing.runtime_s == pytest.approx(20e-6 + 42.5e-6, rel=1e-3)


def test_what_is_faster_than_the_device_can_be_is_cheating() -> None:
    slow = FAKE_DEVICE.model_copy(update={"peak_flops": {"float32": SIZE / 1.0, "float64": 1.0}})
    outcome = Contest().measure(device=slow)  # a millisecond for a second's work
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.CHEATING
    assert "an eighth" in outcome.message
    just = FAKE_DEVICE.model_copy(update={"peak_flops": {"float32": SIZE / 7e-3}})
    assert isinstance(Contest().measure(device=just), Timing)
    unknown = FAKE_DEVICE.model_copy(update={"peak_flops": {}})
    assert isinstance(Contest().measure(device=unknown), Timing)


def test_hidden_cases_are_verified_and_not_timed() -> None:
    hidden = [Case(name="hidden-0", dimensions={"N": 123}, timed=False)]
    timing = Contest(hidden=hidden).timing()
    assert [each.case for each in timing.cases] == ["main"]

    def listed_only(x: NDArray[Any], y: NDArray[Any]) -> None:
        if x.size in (SIZE, 40):
            double(x, y)

    failure = Contest(listed_only, hidden=hidden).failure()
    assert failure.kind is FailureKind.WRONG_RESULT
    assert "case hidden-0" in failure.message


def test_other_magnitudes_find_a_kernel_that_counts_on_the_usual_ones() -> None:
    def clipped(x: NDArray[Any], y: NDArray[Any]) -> None:
        y[:] = 2.0 * np.clip(x, -12, 12)

    hidden = [Case(name="hidden-1", dimensions={"N": 200}, timed=False, scale=16.0)]
    assert isinstance(Contest(clipped).measure(), Timing)
    failure = Contest(clipped, hidden=hidden).failure()
    assert failure.kind is FailureKind.WRONG_RESULT
    assert "case hidden-1" in failure.message
    assert isinstance(Contest(hidden=hidden).measure(), Timing)


def surprises_of(problem: Problem) -> list[Case]:
    return varied_cases(problem, np.random.default_rng(0))


@pytest.mark.parametrize("careful_calls", [2, 4, 10])
@pytest.mark.parametrize("call_s", [20e-6, 1e-3])
def test_a_kernel_cannot_be_careful_only_before_it_is_timed(
    careful_calls: int, call_s: float
) -> None:
    """Its shape, its number of calls and the form of a request do not tell what is verified."""

    def clipped(x: NDArray[Any], y: NDArray[Any]) -> None:
        y[:] = 2.0 * np.clip(x, -12, 12)

    for kernel in (acting_from(careful_calls, clipped), double):
        contest = Contest(kernel, surprises=surprises_of(problem_of()))
        contest.candidate.call_s = contest.reference.call_s = call_s
        outcome = contest.measure(Precision(max_rounds=20))
        if kernel is double:
            assert isinstance(outcome, Timing)
            assert outcome.resolved
            continue
        assert isinstance(outcome, Failure)
        assert outcome.kind is FailureKind.WRONG_RESULT
        assert "case main x 16" in outcome.message


def test_every_surprise_is_verified_once() -> None:
    cases = surprises_of(problem_of())
    contest = Contest(surprises=cases)
    contest.timing()
    names = [case for case, *_ in contest.reference.seen]
    assert [case.name for case in cases] == [
        *("main x 0.0625", "main x 0.0625, late", "main x 16", "main x 16, late")
    ]
    assert all(names.count(case.name) == 1 for case in cases)
    contents = [content for *_, content in contest.candidate.seen]
    assert len(set(contents)) == len(contents)


def test_a_process_that_was_ended_for_the_time_is_asked_nothing_more() -> None:
    undisturbed, contest = (Contest(surprises=surprises_of(problem_of())) for _ in range(2))
    undisturbed.timing()
    candidate = contest.candidate
    candidate.fail_at = len(undisturbed.candidate.seen) - 4  # in the last rounds
    candidate.failure, candidate.starved = TIMEOUT, True
    timing = contest.timing()
    assert len(candidate.seen) == candidate.fail_at
    assert not timing.resolved
    assert timing.low <= 0.0


def test_without_the_time_for_surprises_nothing_is_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contest = Contest(surprises=surprises_of(problem_of()))
    contest.candidate.call_s = 0.5e-3

    def late(_case: str, rounds: float) -> bool:
        if math.isinf(rounds):
            raise OutOfTime
        return False

    monkeypatch.setattr(contest.envelope, "_surprise", late)
    timing = contest.timing()
    assert timing.log2_speedup > 0.9
    assert timing.low == 0.0
    assert not timing.resolved


def flushing(x: NDArray[Any], y: NDArray[Any]) -> None:
    double(x, y)
    y[np.abs(y) < np.finfo(np.float32).tiny] = 0.0


def without_nan(x: NDArray[Any], y: NDArray[Any]) -> None:
    y[:] = 2.0 * np.where(np.isnan(x), np.float32(0), x)


def saturating(x: NDArray[Any], y: NDArray[Any]) -> None:
    largest = np.finfo(np.float32).max / 2
    y[:] = 2.0 * np.where(np.isinf(x), np.sign(x) * largest, x)


SPECIAL: list[tuple[Kernelish, Special]] = [
    (flushing, "denormal"),
    (without_nan, "nan"),
    (saturating, "inf"),
]


@pytest.mark.parametrize(("kernel", "special"), SPECIAL, ids=["denormal", "nan", "inf"])
def test_special_values_find_a_kernel_that_is_right_without_them(
    kernel: Kernelish, special: Special
) -> None:
    case = Case(name="hidden-0", dimensions={"N": 200}, timed=False, special={"x": special})
    assert isinstance(Contest(kernel).measure(), Timing)
    failure = Contest(kernel, hidden=[case]).failure()
    assert failure.kind is FailureKind.WRONG_RESULT
    assert "case hidden-0 (inputs hold" in failure.message
    assert isinstance(Contest(hidden=[case]).measure(), Timing)


@pytest.mark.parametrize(("kernel", "special"), SPECIAL, ids=["denormal", "nan", "inf"])
def test_a_seed_that_is_wrong_on_special_values_is_the_problems_fault(
    kernel: Kernelish, special: Special
) -> None:
    case = Case(name="hidden-0", dimensions={"N": 200}, timed=False, special={"x": special})
    with pytest.raises(ProblemError, match=f"mend it, or state no '{special}' in problem.toml"):
        Contest(reference=kernel, hidden=[case]).measure()


def test_magnitudes_that_are_too_much_for_the_reference_are_left_out() -> None:
    def overflowing(x: NDArray[Any], y: NDArray[Any]) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            huge = np.float32(1e36)
            y[:] = np.where(np.abs(x) > 8, huge * huge, 2.0 * x)

    hidden = [Case(name="hidden-1", dimensions={"N": 200}, timed=False, scale=16.0)]
    contest = Contest(overflowing, overflowing, hidden=hidden)
    contest.timing()
    assert "hidden-1" not in {case for case, *_ in contest.candidate.seen}


def test_a_lower_precision_than_the_references_is_found() -> None:
    def half(x: NDArray[Any], y: NDArray[Any]) -> None:
        y[:] = (2.0 * x).astype(np.float16)

    problem = problem_of(tolerance=2e-3).model_copy(
        update={"tolerance": Tolerance(rtol=2e-3, atol=1e-5)}
    )
    failure = Contest(half, problem=problem).failure()
    assert failure.kind is FailureKind.WRONG_RESULT
    assert "less precise than the reference" in failure.message
    assert isinstance(Contest(half, half, problem=problem).measure(), Timing)


def test_all_of_the_cache_is_flushed_before_each_request() -> None:
    contest = Contest()
    answers = [
        KnownAnswer.draw(contest.problem, case, plain_reference(contest.problem), contest.rng)
        for case in contest.arena.cases.values()
    ]
    contest.envelope.measure(answers, QUICK, FAKE_DEVICE, flush_bytes=4096)
    requests = 2 * (2 + QUICK.max_rounds)
    assert set(contest.envelope._flush.tolist()) == {requests}


# ---------------------------------------------------------------------------- kernels that cheat

PRELUDE = """
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <vector>
static void honest(const float* x, const float* w, float* out, int64_t N, int64_t K) {
    for (int64_t i = 0; i < N; ++i) {
        float sum = 0.0f;
        for (int64_t k = 0; k < K; ++k) sum += x[i + k] * w[k];
        out[i] = sum;
    }
}
static std::atomic<bool> busy{false};
static std::atomic<int64_t> where{0};
"""
ENTRY = 'extern "C" void kernel(const float* x, const float* w, float* out, int64_t N, int64_t K)'

# Returns the answer of an earlier call with the same content.
CACHED = (
    PRELUDE
    + """
static std::map<uint64_t, std::vector<float>> answers;
"""
    + ENTRY
    + """ {
    uint64_t hash = 1469598103934665603ull;
    for (int64_t i = 0; i < N; i += 16) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        hash = (hash ^ bits) * 1099511628211ull;
    }
    auto found = answers.find(hash);
    if (found != answers.end() && (int64_t)found->second.size() == N) {
        memcpy(out, found->second.data(), 4 * N);
        return;
    }
    honest(x, w, out, N, K);
    answers[hash].assign(out, out + N);
}
"""
)
# Looks ahead of time for inputs in the memory that it shares with the parent.
PRECOMPUTED = (
    PRELUDE
    + """
static float scratch[1 << 20];
static void look(const float* x, const float* w, int64_t N, int64_t K) {
    for (;;) honest(x, w, scratch, N, K);
}
"""
    + ENTRY
    + """ {
    if (!busy.exchange(true)) std::thread(look, x, w, N, K).detach();
    honest(x, w, out, N, K);
}
"""
)
# Returns at once, and works when the clock has stopped.
LATE = (
    PRELUDE
    + ENTRY
    + """ {
    std::thread([=] { usleep(20000); honest(x, w, out, N, K); }).detach();
}
"""
)
# Returns the right answer, and slows down whoever runs next.
SPINNING = (
    PRELUDE
    + """
static void spin() {
    for (;;) if (!busy) for (volatile int i = 0; i < 100000; ++i) ;
             else usleep(50);
}
"""
    + ENTRY
    + """ {
    if (!where.exchange(1)) std::thread(spin).detach();
    busy = true;
    honest(x, w, out, N, K);
    busy = false;
}
"""
)
ONLY_LISTED = (
    PRELUDE + ENTRY + " { if (N == 40000 || N == 77) honest(x, w, out, N, K); else out[0] = 1; }\n"
)
# With OpenMP's threads between calls, and with threads of its own that are joined.
TEAM = (
    PRELUDE
    + ENTRY
    + """ {
    #pragma omp parallel for num_threads(2)
    for (int64_t i = 0; i < N; ++i) {
        float sum = 0.0f;
        for (int64_t k = 0; k < K; ++k) sum += x[i + k] * w[k];
        out[i] = sum;
    }
}
"""
)
JOINED = (
    PRELUDE
    + ENTRY
    + """ {
    std::thread([=] { honest(x, w, out, N, K); }).join();
}
"""
)


def measured(
    backend: CppBackend,
    problem: Problem,
    source: str,
    seed: int = 1,
    effort: Effort = "screening",
) -> Measurement:
    kernel = Kernel(id=kernel_id(source, "cpp"), language="cpp", source=source)
    return backend.measure(problem, kernel, seed, effort)


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        pytest.param(PRECOMPUTED, {FailureKind.CHEATING}, id="works ahead"),
        pytest.param(LATE, {FailureKind.WRONG_RESULT, FailureKind.CHEATING}, id="works late"),
        # On a busy machine the spinning may use up the time there is.
        pytest.param(SPINNING, {FailureKind.CHEATING, FailureKind.TIMEOUT}, id="spins when idle"),
    ],
)
def test_work_outside_of_calls_gets_no_time(
    backend: CppBackend, problem: Problem, source: str, kinds: set[FailureKind]
) -> None:
    # On a busy machine, a screening of so short a kernel may be over before a thread has its turn.
    failure = measured(backend, problem, source, effort="final").failure
    assert failure is not None
    assert failure.kind in kinds, failure


@pytest.mark.parametrize("source", [SEED, TEAM, JOINED], ids=["plain", "openmp", "joined"])
def test_work_in_calls_is_no_cheating(backend: CppBackend, problem: Problem, source: str) -> None:
    for seed in range(2):
        assert measured(backend, problem, source, seed).failure is None


def test_remembering_answers_gains_nothing(backend: CppBackend, problem: Problem) -> None:
    """No content comes twice, so that there is only the price of remembering."""
    measurement = measured(backend, problem, CACHED)
    assert measurement.timing is not None, measurement.failure
    assert measurement.timing.log2_speedup < 0.2
    assert not measurement.faster


def test_a_kernel_for_the_listed_shapes_alone_is_wrong(
    backend: CppBackend, problem: Problem
) -> None:
    failure = measured(backend, problem, ONLY_LISTED).failure
    assert failure is None  # as long as the problem does not say which other shapes are legal
    legal = Hidden(dimensions={"N": (1, 20_000), "K": (1, 16)})
    stricter = problem.model_copy(update={"hidden": legal})
    failure = measured(backend, stricter, ONLY_LISTED).failure
    assert failure is not None
    assert failure.kind is FailureKind.WRONG_RESULT
    assert "case hidden" in failure.message
    assert measured(backend, stricter, SEED).failure is None


def test_too_fast_for_the_device_is_cheating(problem: Problem) -> None:
    peaks = {"float32": 1e6, "float64": 1e6}
    backend = CppBackend(detect_cpu().model_copy(update={"peak_flops": peaks}))
    try:
        failure = measured(backend, problem, TEAM).failure
    finally:
        backend.close()
    assert failure is not None
    assert failure.kind is FailureKind.CHEATING
    assert "device's peak" in failure.message


def test_whole_numbers_as_inputs_survive_other_magnitudes(backend: CppBackend) -> None:
    """Every second hidden case is scaled; indices and counts must not be."""
    plain = make_problem()
    x, w, out = plain.arguments
    counted = x.model_copy(update={"fill": Fill(kind="integers", low=0, high=9)})
    problem = plain.model_copy(update={"arguments": (counted, w, out)})
    assert measured(backend, problem, SEED).failure is None
