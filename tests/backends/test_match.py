"""Matches on a machine of any speed: the children and all clocks are made of Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np
import pytest

from kernelcast.backends import _match, _timing
from kernelcast.backends._arena import Arena
from kernelcast.backends._child import STARVED, Child
from kernelcast.backends._inputs import FreshInputs
from kernelcast.backends._match import MachineBusy, Match
from kernelcast.backends._timing import Precision
from kernelcast.backends._verify import KnownAnswer
from kernelcast.errors import ProblemError
from kernelcast.testing import FAKE_DEVICE
from kernelcast.types import Failure, FailureKind, Timing

from .conftest import plain_reference
from .test_envelope import CRASH, TIMEOUT, FakeChild, problem_of

TEN_ROUNDS = Precision(min_rounds=10, max_rounds=10)
CAP_S = 10.0


class Clock:
    """Stands for the module `time`; it moves when a child works, and this thread costs nothing."""

    now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def thread_time(self) -> float:
        return 0.0


class ClockedChild(FakeChild):
    """Each of its requests takes `cpu_s`, and the machine gives it a `core_share` of a core."""

    def __init__(self, arena: Arena, clock: Clock) -> None:
        super().__init__(arena)
        self._clock = clock
        self.cpu_s, self.core_share = 1e-3, 1.0
        self.wall_s = self.core_s = 0.0
        self.share = 1.0
        self.load_failure: Failure | None = None
        self.limits_s: list[float] = []

    def load(self, timeout_s: float) -> Failure | None:
        if self.load_failure is not None:
            self.share = self.core_share
            self.starved = self.share < STARVED
        return self.load_failure

    def run(self, case: str, calls: int, base: int, timeout_s: float) -> float | Failure:
        outcome = super().run(case, calls, base, timeout_s)
        self.limits_s.append(timeout_s)
        left_s = self.deadline - self._clock.now_s
        seconds = min(self.cpu_s / self.core_share, left_s)
        self._clock.now_s += seconds
        self.wall_s += seconds
        self.core_s += seconds * self.core_share
        if seconds == left_s:
            self.share = self.core_share
            self.starved = self.share < STARVED
            return TIMEOUT
        return outcome


class Machine:
    """Starts pairs of children, which `prepare` may change first, and notes pauses."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.pauses: list[float] = []
        self.pairs: list[tuple[ClockedChild, ClockedChild]] = []
        self.prepare: Callable[[ClockedChild, ClockedChild], None] = lambda *_: None

    def match(self, tries: int = 4) -> Match:
        rng = np.random.default_rng(0)
        problem = problem_of()
        arena = Arena.of(problem)

        @contextmanager
        def start() -> Iterator[tuple[Child, Child]]:
            candidate, reference = (ClockedChild(arena, self.clock) for _ in range(2))
            self.prepare(candidate, reference)
            self.pairs.append((candidate, reference))
            yield cast(Child, candidate), cast(Child, reference)

        def draw() -> tuple[Sequence[KnownAnswer], Mapping[str, FreshInputs]]:
            answer = plain_reference(problem)
            fresh = {each.name: FreshInputs(problem, each, rng) for each in problem.timed_cases}
            return [KnownAnswer.draw(problem, each, answer, rng) for each in problem.cases], fresh

        return Match(
            arena=arena,
            start=start,
            draw=draw,
            rng=rng,
            precision=TEN_ROUNDS,
            device=FAKE_DEVICE,
            flush_bytes=0,
            cap_s=CAP_S,
            tries=tries,
            pause=self.pauses.append,
        )

    def slow_down(self, cpu_s: float, core_share: float) -> None:
        """Give every child of later pairs so much work, and so little of a core."""

        def prepare(*children: ClockedChild) -> None:
            for child in children:
                child.cpu_s, child.core_share = cpu_s, core_share

        self.prepare = prepare


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    clock = Clock()
    for module in (_match, _timing):
        monkeypatch.setattr(module, "time", clock)
    return Machine(clock)


def test_a_quiet_machine_needs_one_try(machine: Machine) -> None:
    match = machine.match()
    assert isinstance(match.play(), Timing)
    assert len(machine.pairs) == 1
    assert machine.pauses == []
    assert match.device_s == pytest.approx(machine.clock.now_s)


def test_a_busy_machine_is_given_twice_the_time_after_each_pause(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    # 28 requests, 4 of them to verify and 4 to warm up, are 3.6 s: at 0.12 of a core, 30 s.
    machine.slow_down(cpu_s=0.13, core_share=0.12)
    match = machine.match()
    outcome = match.play()
    assert isinstance(outcome, Timing)
    assert len(outcome.cases[0].log2_ratios) == 10
    assert machine.pauses == [1.0, 2.0]
    first_limits_s = [reference.limits_s[0] for _, reference in machine.pairs]
    assert first_limits_s == pytest.approx([9.5, 19.5, 39.5])
    assert match.device_s == CAP_S  # neither the pauses nor what the machine added
    assert caplog.messages == [
        "The machine is busy: the kernels got 12% of a core. "
        "Pausing for 1 s before measuring synthetic again (try 2 of 4).",
        "The machine is busy: the kernels got 12% of a core. "
        "Pausing for 2 s before measuring synthetic again (try 3 of 4).",
    ]


def test_a_machine_that_stays_busy_is_told_after_the_last_try(machine: Machine) -> None:
    machine.slow_down(cpu_s=1.0, core_share=0.01)
    match = machine.match(tries=8)
    with pytest.raises(MachineBusy, match="1% of a core for 8 minutes"):
        match.play()
    assert machine.pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert len(machine.pairs) == 8
    assert match.device_s == CAP_S


def test_a_few_rounds_are_better_than_nothing_after_the_last_try(machine: Machine) -> None:
    machine.slow_down(cpu_s=0.13, core_share=0.12)
    outcome = machine.match(tries=2).play()
    assert isinstance(outcome, Timing)
    assert not outcome.resolved
    assert 0 < len(outcome.cases[0].log2_ratios) < 8
    assert machine.pauses == [1.0]


@pytest.mark.parametrize("starved", [0, 1], ids=["candidate", "reference"])
def test_one_starved_process_is_enough(machine: Machine, starved: int) -> None:
    def prepare(*children: ClockedChild) -> None:
        if not machine.pairs:
            children[starved].core_share = 1e-9

    machine.prepare = prepare
    assert isinstance(machine.match().play(), Timing)
    assert machine.pauses == [1.0]


@pytest.mark.parametrize("late", [0, 1], ids=["candidate", "reference"])
def test_a_process_that_is_starved_while_it_loads_is_started_again(
    machine: Machine, late: int
) -> None:
    def prepare(*children: ClockedChild) -> None:
        if not machine.pairs:
            children[late].core_share = 0.1
            children[late].load_failure = TIMEOUT

    machine.prepare = prepare
    assert isinstance(machine.match().play(), Timing)
    assert machine.pauses == [1.0]


def test_a_candidate_that_does_not_load_although_the_machine_is_quiet_has_failed(
    machine: Machine,
) -> None:
    def prepare(candidate: ClockedChild, reference: ClockedChild) -> None:
        candidate.load_failure = TIMEOUT

    machine.prepare = prepare
    assert machine.match().play() == TIMEOUT
    assert len(machine.pairs) == 1


def test_a_candidate_that_is_slow_on_a_quiet_machine_has_failed(machine: Machine) -> None:
    def prepare(candidate: ClockedChild, reference: ClockedChild) -> None:
        candidate.cpu_s = 6.0

    machine.prepare = prepare
    outcome = machine.match().play()
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.TIMEOUT
    assert outcome.message == "not measured in the time there was"
    assert machine.pauses == []


def test_a_candidate_that_sleeps_is_not_taken_for_a_busy_machine(machine: Machine) -> None:
    """The process gets little CPU time, but it wants none: no request of it ends in starvation."""

    class Sleeper(ClockedChild):
        def run(self, case: str, calls: int, base: int, timeout_s: float) -> float | Failure:
            outcome = super().run(case, calls, base, timeout_s)
            self.share, self.starved = 1.0, False
            return outcome

    def prepare(candidate: ClockedChild, reference: ClockedChild) -> None:
        candidate.__class__ = Sleeper
        candidate.core_share = 1e-3 / 6.0

    machine.prepare = prepare
    outcome = machine.match().play()
    assert isinstance(outcome, Failure)
    assert outcome.message == "not measured in the time there was"
    assert machine.pauses == []


def test_kernels_that_had_all_of_their_cpu_time_are_not_tried_again(machine: Machine) -> None:
    """A candidate that computes for ever costs no more on a busy machine than it must."""

    def prepare(candidate: ClockedChild, reference: ClockedChild) -> None:
        candidate.cpu_s = math.inf
        candidate.core_share = reference.core_share = 0.3

    machine.prepare = prepare
    outcome = machine.match(tries=8).play()
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.TIMEOUT
    assert machine.pauses == [1.0, 2.0]  # 40 s at 0.3 of a core are more than 10 s


@pytest.mark.parametrize("failure", [CRASH, TIMEOUT], ids=["crash", "timeout"])
def test_a_reference_that_fails_is_tried_again_at_once(machine: Machine, failure: Failure) -> None:
    broken = 1

    def prepare(candidate: ClockedChild, reference: ClockedChild) -> None:
        if len(machine.pairs) < broken:
            reference.fail_at, reference.failure = 3, failure

    machine.prepare = prepare
    assert isinstance(machine.match().play(), Timing)
    broken = 10
    machine.pairs.clear()
    if failure is TIMEOUT:
        outcome = machine.match().play()
        assert isinstance(outcome, Failure)
        assert outcome.kind is FailureKind.TIMEOUT
        assert outcome.message == "the seed kernel itself gave no answer"
    else:
        with pytest.raises(ProblemError, match=r"seed kernel of synthetic failed \(crash: planted"):
            machine.match().play()
    assert len(machine.pairs) == 3
    assert machine.pauses == []


def test_a_candidate_that_fails_is_not_tried_again(machine: Machine) -> None:
    def prepare(candidate: ClockedChild, reference: ClockedChild) -> None:
        candidate.core_share = reference.core_share = 0.1
        candidate.fail_at = 3

    machine.prepare = prepare
    failure = machine.match().play()
    assert isinstance(failure, Failure)
    assert (failure.kind, CRASH.message in failure.message) == (CRASH.kind, True)
    assert len(machine.pairs) == 1


def test_work_outside_of_calls_must_be_found_three_times(machine: Machine) -> None:
    guilty = 1

    def prepare(candidate: ClockedChild, reference: ClockedChild) -> None:
        if len(machine.pairs) < guilty:
            candidate.idle_cpu_per_request_s = 10e-3

    machine.prepare = prepare
    assert isinstance(machine.match().play(), Timing)
    assert len(machine.pairs) == 2
    guilty = 10
    machine.pairs.clear()
    outcome = machine.match().play()
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.CHEATING
    assert len(machine.pairs) == 3
    assert machine.pauses == []
