"""A match: one source against the seed kernel, repeated until there is a verdict.

Every attempt is an `Envelope`: new processes, inputs that neither has seen, and verified outputs.
The reference is trusted, the candidate is not. Both get the same inputs at the same addresses in
memory of their own, one request at a time. The candidate's outputs are copied as soon as it replies
and compared with the reference's; in verification calls, with the oracle's. Some verification calls
come as a surprise between timed ones: a kernel cannot be careful only when it is not timed.

Two things are no verdict:

- Doubt: the seed kernel's process failed, or the candidate took CPU time outside of its calls,
  which a busy machine may charge to an honest kernel. The attempt is repeated at once, twice at
  most.
- A busy machine: time ran out while the processes got less than half of a core, and in all less
  CPU time than the match may take. The match pauses, logs it, and repeats the attempt with twice
  the time.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

import numpy as np

from kernelcast.backends._arena import Arena
from kernelcast.backends._child import STARVED, Child
from kernelcast.backends._inputs import LATE, InputSource
from kernelcast.backends._overtime import Overtime
from kernelcast.backends._timing import OutOfTime, Precision, time_pairs
from kernelcast.backends._verify import Errors, Image, KnownAnswer, Slot, differences, in_case
from kernelcast.errors import ProblemError
from kernelcast.expression import evaluate
from kernelcast.types import Device, Failure, FailureKind, Timing

_LOAD_TIMEOUT_S = 20.0
_CLEANUP_MARGIN_S = 0.5
_REPEATS = 2
_LONGEST_PAUSE_S = 30.0
_MOST_TIME_FACTOR = 8
_TIMEOUT_FACTOR = 20.0
_TIMEOUT_SLACK_S = 1.0
_TOO_FAST_FACTOR = 8.0

_log = logging.getLogger("kernelcast.backends")


class _KernelFailed(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class CandidateFailed(_KernelFailed):
    """The candidate failed; `Envelope.measure` returns its failure."""


class ReferenceLost(_KernelFailed):
    """The reference's process failed. The candidate has not failed."""


class Envelope:
    """One attempt at a measurement: both processes, and everything that neither may know."""

    def __init__(
        self,
        arena: Arena,
        candidate: Child,
        reference: Child,
        fresh: Mapping[str, InputSource],
        rng: np.random.Generator,
        deadline: float,
    ) -> None:
        self._arena, self._fresh, self._rng, self._deadline = arena, fresh, rng, deadline
        self.candidate, self.reference = candidate, reference
        self._images: dict[str, list[Image]] = {}
        self._surprises: list[tuple[float, KnownAnswer]] = []  # and after how many rounds
        self._requests: dict[str, list[int]] = {}  # the calls of each, by case
        self._honest: dict[str, Errors] = {}
        self._taken: Slot = np.zeros((0, 0), np.uint8)
        self._base = 0
        self._charged_s = {True: 0.0, False: 0.0}  # by side, True is the candidate's
        self._copies_s: dict[str, list[float]] = {}  # the reference's for a call, by case
        self._call_limit_s: dict[str, float] = dict.fromkeys(arena.cases, math.inf)
        self.overtime = Overtime(candidate, reference)
        self._flush = np.zeros(0, np.uint8)
        self._cut_short = False  # a process was ended for the time, and answers nothing more
        candidate.deadline = reference.deadline = deadline
        # Cores differ in speed and load, so both run on the same one.
        candidate.core = reference.core = int(rng.choice(candidate.cores))

    def measure(
        self,
        answers: Sequence[KnownAnswer],
        precision: Precision,
        device: Device,
        flush_bytes: int = 0,
        surprises: Sequence[KnownAnswer] = (),
    ) -> Timing | Failure:
        """Verify on every known answer, then time; the first failure ends it.

        Surprises are known answers of a timed case's shape, to be verified while it is timed.

        Raises:
            OutOfTime: The deadline passed, or a process was starved, before the first round ended.
            ReferenceLost: The reference failed.
        """
        self._flush = np.zeros(flush_bytes, np.uint8)
        timed = [case.name for case in self._arena.problem.timed_cases]
        try:
            self._verify(answers)
            rounds = self._rng.integers(precision.min_rounds, size=len(surprises))
            self._surprises = [
                (math.inf if answer.image.case.name.endswith(LATE) else round_, answer)
                for round_, answer in zip(rounds, surprises, strict=True)
            ]
            timing = time_pairs(timed, self, self._rng, precision, self._deadline)
            timing = self._after_surprises(timing)
            self._require_plausible(timing, device)
            if not self._cut_short:
                _pass(self.candidate.inspect())
        except CandidateFailed as failed:
            return failed.failure
        return timing

    def _verify(self, answers: Sequence[KnownAnswer]) -> None:
        for answer, errors in [(answer, self._honest_errors(answer)) for answer in answers]:
            if errors is not None:
                self._honest[answer.image.case.name] = errors
                _pass(answer.check(self._called(self.candidate, answer), errors))
        _pass(self.overtime.check())

    def _honest_errors(self, answer: KnownAnswer) -> Errors | None:
        """The reference's errors; None if magnitudes of this scale overflow in it."""
        slot = self._called(self.reference, answer)
        errors = answer.errors(slot)
        if answer.image.case.scale != 1.0:
            finite = all(math.isfinite(error.worst) for error in errors.values())
            return errors if finite else None
        if failure := answer.check(slot):
            if special := set(answer.image.case.special.values()):
                name = self._arena.problem.name
                raise ProblemError(
                    f"the seed kernel of {name} is wrong in {failure.headline}: mend it, or state "
                    f"no {' or '.join(map(repr, special))} in problem.toml"
                )
            raise ReferenceLost(failure)
        return errors

    def _called(self, child: Child, answer: KnownAnswer) -> Slot:
        """The slot after one call on the known answer's inputs."""
        case = answer.image.case.name
        self._place(case, 1)
        slot: Slot = self._prepared(child, case, 1)[0]
        slot[:] = answer.image.content
        seconds = self._timed(child, case, 1)
        self._late(child, case, 1)
        if child is self.reference:
            # From now on, calls that are very much slower than the reference's are cut short.
            self._call_limit_s[case] = _TIMEOUT_FACTOR * seconds
        return slot

    def stage(self, case: str, calls: int) -> None:
        """Draw new inputs for so many calls, and new addresses."""
        images = self._images.setdefault(case, [])
        while len(images) < calls:
            images.append(Image.blank(self._arena.problem, self._arena.cases[case], self._rng))
        for image in images[:calls]:
            self._fresh[case].fill(image.arrays(image.content, "input"), self._rng)
        self._place(case, calls)

    def run(self, case: str, calls: int, *, candidate: bool) -> float:
        """Seconds of one request on the staged inputs.

        The inputs are written now, and all CPU time that the process took since its last request
        counts: it gains nothing by work outside of the request.
        """
        child = self.candidate if candidate else self.reference
        slots = self._written(child, case, calls)
        if self._flush.size:
            self._flush += 1
        seconds = self._timed(child, case, calls)
        if candidate:
            # Copied at once: what is written after the reply does not count.
            if self._taken.shape != slots.shape:  # new memory costs more than the copy
                self._taken = np.empty_like(slots)
            self._taken[:] = slots
        return seconds + self._charge(candidate=candidate) + self._late(child, case, calls)

    def _late(self, child: Child, case: str, calls: int) -> float:
        """Seconds by which the candidate's copies exceed the reference's.

        A result that is computed only when it is copied is late, and one that lies apart takes
        longer to copy. What the reference's take is the median so far.
        """
        if child is self.reference:
            self._copies_s.setdefault(case, []).append(child.copies_s / calls)
            return 0.0
        return max(0.0, child.copies_s - calls * median(self._copies_s[case]))

    def _charge(self, *, candidate: bool) -> float:
        """Seconds of CPU time that a process took aside since this was last asked."""
        child = self.candidate if candidate else self.reference
        child.audit()
        before_s = self._charged_s[candidate]
        self._charged_s[candidate] = child.aside_s
        return child.aside_s - before_s if child.on_cpu else 0.0

    def idle(self, case: str, calls: int) -> float:
        """Seconds of a request without the work, by the reference's process."""
        answer = self.reference.idle(case, calls, self._limit_s(case, calls))
        return self._seconds(self.reference, case, answer)

    def settle(self, case: str, calls: int) -> None:
        """Compare the candidate's outputs with the reference's."""
        tolerance = self._arena.problem.tolerance
        theirs = self._slots(self.reference, case, calls)
        for index, image in enumerate(self._images[case][:calls]):
            both = self._taken[index], theirs[index]
            _pass(differences(image, tolerance, self._honest[case], *both))
        _pass(self.overtime.check(of_a_round=True) or self.candidate.inspect(whole=False))
        self._requests.setdefault(case, []).append(calls)
        while self._surprise(case, len(self._requests[case])):
            pass

    def _after_surprises(self, timing: Timing) -> Timing:
        """The timing once all surprises are verified; without the time for it, no claim."""
        try:
            for case in timing.cases:
                while self._surprise(case.case, math.inf):
                    pass
        except OutOfTime:
            unclaimed = {"resolved": False, "low": min(timing.low, 0.0)}
            return timing.model_copy(update=unclaimed)
        return timing

    def _surprise(self, case: str, rounds: float) -> bool:
        """Verify one call of a request that looks like a timed one; False if none is due."""
        dimensions = self._arena.cases[case].dimensions
        due = (
            index
            for index, (round_, answer) in enumerate(self._surprises)
            if round_ <= rounds and answer.image.case.dimensions == dimensions
        )
        index = next(due, None)
        if index is None:
            return False
        _, answer = self._surprises.pop(index)
        calls = self._requests[case][-1]
        errors = self._honest_errors(answer)
        if errors is not None:
            self.stage(case, calls)
            slots = self._written(self.candidate, case, calls)
            chosen = slots[int(self._rng.integers(calls))]
            chosen[:] = answer.image.content
            self._timed(self.candidate, case, calls)
            _pass(answer.check(chosen, errors))
        return True

    def most_calls(self, case: str) -> int:
        """How many calls fit into one request."""
        return self._arena.most_calls(case)

    def _require_plausible(self, timing: Timing, device: Device) -> None:
        """Fail a candidate that is much faster than the device's peak allows."""
        peak = max(device.peak_flops.values(), default=math.inf)
        for timed in timing.cases:
            dimensions = self._arena.cases[timed.case].dimensions
            floor_s = evaluate(self._arena.problem.flops, dimensions) / peak
            if timed.runtime_s * _TOO_FAST_FACTOR < floor_s:
                message = (
                    f"case {timed.case}: {timed.runtime_s:.3g} s is less than an eighth of "
                    f"what the stated work takes at the device's peak ({floor_s:.3g} s)"
                )
                raise CandidateFailed(Failure(kind=FailureKind.CHEATING, message=message))

    def _place(self, case: str, calls: int) -> None:
        stride = self._arena.layouts[case].stride
        self._base = stride * int(self._rng.integers(self._arena.size // stride - calls + 1))

    def _slots(self, child: Child, case: str, calls: int) -> Slot:
        stride = self._arena.layouts[case].stride
        return child.memory[self._base : self._base + calls * stride].reshape(calls, stride)

    def _written(self, child: Child, case: str, calls: int) -> Slot:
        """The slots of a process with the staged inputs in them."""
        slots = self._prepared(child, case, calls)
        for slot, image in zip(slots, self._images[case], strict=False):
            slot[:] = image.content
        return slots

    def _prepared(self, child: Child, case: str, calls: int) -> Slot:
        """The slots of a process that is ready for their content."""
        failure = child.prepare(case, calls, self._base, self._limit_s(case, calls))
        self._seconds(child, case, failure or 0.0)
        return self._slots(child, case, calls)

    def _timed(self, child: Child, case: str, calls: int) -> float:
        limit_s = self._limit_s(case, calls)
        seconds = self._seconds(child, case, child.run(case, calls, self._base, limit_s))
        if child is self.candidate:
            self.overtime.worked(seconds)
        return seconds

    def _seconds(self, child: Child, case: str, answer: float | Failure) -> float:
        """The seconds of a request; raise what a failure means."""
        if not isinstance(answer, Failure):
            return answer
        late = child.starved or time.perf_counter() >= self._deadline
        if answer.kind is FailureKind.TIMEOUT and late:
            self._cut_short = True
            raise OutOfTime
        if child is self.candidate:
            raise CandidateFailed(in_case(self._arena.cases[case], answer))
        raise ReferenceLost(answer)

    def _limit_s(self, case: str, calls: int) -> float:
        """The limit of a request of so many calls from now on."""
        left_s = self._deadline - time.perf_counter()
        if left_s <= 0.0 or self._cut_short:
            raise OutOfTime
        return min(_TIMEOUT_SLACK_S + calls * self._call_limit_s[case], left_s)


def _pass(failure: Failure | None) -> None:
    if failure is not None:
        raise CandidateFailed(failure)


class MachineBusy(Exception):
    """No attempt ended in a verdict, because the machine gave the kernels too little CPU time."""

    def __init__(self, share: float, seconds: float) -> None:
        spoken = f"{seconds / 60:.0f} minutes" if seconds >= 90.0 else f"{seconds:.0f} seconds"
        super().__init__(
            f"the machine was too busy: it gave the kernels {share:.0%} of a core for {spoken}"
        )


@dataclass(frozen=True)
class Retry:
    """An attempt without a verdict, and what it gave; `share` of a core is what processes got."""

    reason: Literal["busy", "doubt"]
    outcome: Timing | Failure | ReferenceLost
    share: float


@dataclass
class Match:
    """What the attempts of one match have in common. `device_s` is what they took so far.

    An attempt may take `time_factor` times `cap_s`, but `device_s` never exceeds `cap_s`: neither
    pauses nor what a busy machine adds are charged.
    """

    arena: Arena
    start: Callable[[], AbstractContextManager[tuple[Child, Child]]]
    draw: Callable[[], tuple[Sequence[KnownAnswer], Mapping[str, InputSource]]]
    rng: np.random.Generator
    precision: Precision
    device: Device
    flush_bytes: int
    cap_s: float
    tries: int
    pause: Callable[[float], object]
    surprises: Set[str] = frozenset()  # the names of cases to be verified while others are timed
    time_factor: int = 1
    device_s: float = field(default=0.0, init=False)

    def play(self) -> Timing | Failure:
        """The verdict on the candidate; a timeout of the seed kernel is one of the candidate too.

        Raises:
            ProblemError: The seed kernel failed in every attempt.
            MachineBusy: The machine was too busy in every attempt.
        """
        began = time.perf_counter()
        made = {"busy": 0, "doubt": 0}
        most = {"busy": self.tries - 1, "doubt": _REPEATS}
        while isinstance(result := self.attempt(), Retry):
            if result.reason == "busy":
                self.time_factor = min(2 * self.time_factor, _MOST_TIME_FACTOR)
            if made[result.reason] == most[result.reason]:
                return self._at_last(result, time.perf_counter() - began)
            made[result.reason] += 1
            if result.reason == "busy":
                self._rest(result.share, made["busy"])
        return result

    def _at_last(self, retry: Retry, seconds: float) -> Timing | Failure:
        """What counts if there are no more attempts."""
        if retry.reason == "busy" and not isinstance(retry.outcome, Timing):
            raise MachineBusy(retry.share, seconds)
        if isinstance(retry.outcome, ReferenceLost):
            return self._without_reference(retry.outcome)
        return retry.outcome

    def _without_reference(self, lost: ReferenceLost) -> Failure:
        if lost.failure.kind is FailureKind.TIMEOUT:
            message = f"the seed kernel itself gave {lost}"
            return lost.failure.model_copy(update={"message": message})
        raise ProblemError(
            f"the seed kernel of {self.arena.problem.name} failed ({lost.failure.kind}: {lost}): "
            "mend it, or the problem's reference.py if that is wrong"
        ) from lost

    def _rest(self, share: float, pauses: int) -> None:
        pause_s = min(2.0 ** (pauses - 1), _LONGEST_PAUSE_S)
        _log.warning(
            "The machine is busy: the kernels got %.0f%% of a core. Pausing for %g s before "
            "measuring %s again (try %d of %d).",
            *(100 * share, pause_s, self.arena.problem.name, pauses + 1, self.tries),
        )
        self.pause(pause_s)

    def attempt(self) -> Timing | Failure | Retry:
        """Measure once, with new processes and inputs that neither has seen."""
        with self.start() as (candidate, reference):
            # The processes start while the inputs are drawn, and then wait for their first request.
            answers, fresh = self.draw()
            # Loading the device's runtime is not device time.
            if failure := reference.load(_LOAD_TIMEOUT_S):
                reason: Literal["busy", "doubt"] = "busy" if reference.starved else "doubt"
                return Retry(reason, ReferenceLost(failure), reference.share)
            started = time.perf_counter()
            candidate.deadline = started + self.time_factor * self.cap_s - _CLEANUP_MARGIN_S
            try:
                if failure := candidate.load(min(_LOAD_TIMEOUT_S, self.cap_s)):
                    return Retry("busy", failure, candidate.share) if candidate.starved else failure
                deadline = candidate.deadline
                envelope = Envelope(self.arena, candidate, reference, fresh, self.rng, deadline)
                return self._measured(envelope, answers)
            finally:
                self.device_s = min(self.cap_s, self.device_s + time.perf_counter() - started)

    def _measured(
        self, envelope: Envelope, answers: Sequence[KnownAnswer]
    ) -> Timing | Failure | Retry:
        outcome: Timing | Failure | ReferenceLost
        candidate, reference = envelope.candidate, envelope.reference
        started, cpu_before_s = time.perf_counter(), time.thread_time()
        out_of_time = doubtful = False
        try:
            first: list[KnownAnswer] = []
            surprises: list[KnownAnswer] = []
            for answer in answers:
                late = answer.image.case.name in self.surprises
                (surprises if late else first).append(answer)
            outcome = envelope.measure(
                first, self.precision, self.device, self.flush_bytes, surprises
            )
        except OutOfTime:
            message = "not measured in the time there was"
            outcome = Failure(kind=FailureKind.TIMEOUT, message=message)
            out_of_time = True
        except ReferenceLost as lost:
            outcome = lost
            doubtful = lost.failure.kind in (FailureKind.CRASH, FailureKind.TIMEOUT)
        else:
            doubtful = envelope.overtime.exceeded
            if isinstance(outcome, Timing):
                rounds = len(outcome.cases[0].log2_ratios)
                out_of_time = rounds < min(self.precision.fewest_rounds, self.precision.max_rounds)
        # This thread and the reference show what the machine gives. A candidate that sleeps gets
        # little too; only its requests that ended in starvation count.
        core_s = time.thread_time() - cpu_before_s + reference.core_s
        wall_s = time.perf_counter() - started - candidate.wall_s
        share = min(core_s / wall_s, candidate.share, reference.share)
        had_its_time = core_s + candidate.core_s >= self.cap_s - _CLEANUP_MARGIN_S
        if out_of_time and share < STARVED and not had_its_time:
            return Retry("busy", outcome, share)
        if doubtful:
            return Retry("doubt", outcome, share)
        return self._without_reference(outcome) if isinstance(outcome, ReferenceLost) else outcome
