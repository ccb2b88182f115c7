"""The sealed envelope: two processes, inputs that neither has seen, and verified outputs.

The reference is trusted, the candidate is not. Both get the same fresh inputs at the same fresh
addresses in memory of their own, one request at a time. The candidate's outputs are copied as soon
as it replies and compared with the reference's; in verification calls, with the oracle's. Work of
the candidate outside of its calls is cheating.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kernelcast.backends._arena import Arena
from kernelcast.backends._child import Child
from kernelcast.backends._inputs import FreshInputs
from kernelcast.backends._overtime import Overtime
from kernelcast.backends._timing import OutOfTime, Precision, time_pairs
from kernelcast.backends._verify import Errors, Image, KnownAnswer, differences
from kernelcast.expression import evaluate
from kernelcast.types import Device, Failure, FailureKind, Timing

_TIMEOUT_FACTOR = 20.0
_TIMEOUT_SLACK_S = 1.0
_TOO_FAST_FACTOR = 8.0

Slots = NDArray[np.uint8]


class ReferenceLost(Exception):
    """The reference's process failed. The candidate has not failed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Envelope:
    """One attempt at a measurement: both processes, and everything that neither may know."""

    def __init__(
        self,
        arena: Arena,
        candidate: Child,
        reference: Child,
        fresh: Mapping[str, FreshInputs],
        rng: np.random.Generator,
        deadline: float,
    ) -> None:
        self._arena = arena
        self._candidate, self._reference = candidate, reference
        self._fresh = fresh
        self._rng = rng
        self._deadline = deadline
        self._images: dict[str, list[Image]] = {}
        self._honest: dict[str, Errors] = {}
        self._taken: Slots = np.zeros((0, 0), np.uint8)
        self._base = 0
        self._call_limit_s: dict[str, float] = dict.fromkeys(arena.cases, math.inf)
        self.overtime = Overtime(candidate, reference)
        self._flush = np.zeros(0, np.uint8)
        candidate.deadline = reference.deadline = deadline
        # Cores differ in speed and load, so both run on the same one.
        candidate.core = reference.core = int(rng.choice(candidate.cores))

    def measure(
        self,
        answers: Sequence[KnownAnswer],
        precision: Precision,
        device: Device,
        flush_bytes: int = 0,
    ) -> Timing | Failure:
        """Verify on every known answer, then time; the first failure ends it.

        Raises:
            OutOfTime: The deadline passed, or a process was starved, before the first round ended.
            ReferenceLost: The reference failed.
        """
        self._flush = np.zeros(flush_bytes, np.uint8)
        if failure := self._verify(answers):
            return failure
        timed = [case.name for case in self._arena.problem.timed_cases]
        outcome = time_pairs(timed, self, self._rng, precision, self._deadline)
        return self._plausible(outcome, device)

    def _verify(self, answers: Sequence[KnownAnswer]) -> Failure | None:
        honest = [self._honest_errors(answer) for answer in answers]
        for answer, errors in zip(answers, honest, strict=True):
            if errors is None:
                continue
            self._honest[answer.image.case.name] = errors
            slot = self._called(self._candidate, answer)
            if isinstance(slot, Failure):
                return slot
            if failure := answer.check(slot, errors):
                return failure
        return self.overtime.check()

    def _honest_errors(self, answer: KnownAnswer) -> Errors | None:
        """The reference's errors; None if magnitudes of this scale overflow in it."""
        slot = self._called(self._reference, answer)
        if isinstance(slot, Failure):
            raise ReferenceLost(slot)
        errors = answer.errors(slot)
        if answer.image.case.scale != 1.0:
            finite = all(math.isfinite(error.worst) for error in errors.values())
            return errors if finite else None
        if failure := answer.check(slot):
            raise ReferenceLost(failure)
        return errors

    def _called(self, child: Child, answer: KnownAnswer) -> Slots | Failure:
        """The slot after one call on the known answer's inputs."""
        case = answer.image.case.name
        self._place(case, 1)
        slot: Slots = self._slots(child, case, 1)[0]
        slot[:] = answer.image.content
        seconds = self._timed(child, case, 1)
        if isinstance(seconds, Failure):
            return seconds
        if child is self._reference:
            # From now on, calls that are very much slower than the reference's are cut short.
            self._call_limit_s[case] = _TIMEOUT_FACTOR * seconds
        return slot

    def stage(self, case: str, calls: int) -> None:
        """New inputs for so many calls, at new addresses."""
        images = self._images.setdefault(case, [])
        while len(images) < calls:
            images.append(Image.blank(self._arena.problem, self._arena.cases[case], self._rng))
        for image in images[:calls]:
            self._fresh[case].fill(image.arrays(image.content, "input"), self._rng)
        self._place(case, calls)

    def run(self, case: str, calls: int, *, candidate: bool) -> float | Failure:
        """Seconds of one request on the staged inputs."""
        child = self._candidate if candidate else self._reference
        for slot, image in zip(self._slots(child, case, calls), self._images[case], strict=False):
            slot[:] = image.content
        if self._flush.size:
            self._flush += 1
        seconds = self._timed(child, case, calls)
        if candidate:
            # Copied at once: what is written after the reply does not count.
            slots = self._slots(child, case, calls)
            if self._taken.shape != slots.shape:  # new memory costs more than the copy
                self._taken = np.empty_like(slots)
            self._taken[:] = slots
        elif isinstance(seconds, Failure):
            raise ReferenceLost(seconds)
        return seconds

    def idle(self, case: str, calls: int) -> float | Failure:
        """Seconds of a request without the work, by the reference's process.

        The candidate is asked as well, so that both have rested equally long.
        """
        seconds = 0.0
        for index in self._rng.permutation(2):
            child = (self._candidate, self._reference)[index]
            taken = self._in_time(child, child.idle(case, calls, self._limit_s(case, calls)))
            if isinstance(taken, Failure):
                if child is self._candidate:
                    return taken
                raise ReferenceLost(taken)
            if child is self._reference:
                seconds = taken
        return seconds

    def settle(self, case: str, calls: int) -> Failure | None:
        """Compare the candidate's outputs with the reference's."""
        tolerance = self._arena.problem.tolerance
        theirs = self._slots(self._reference, case, calls)
        for index, image in enumerate(self._images[case][:calls]):
            both = self._taken[index], theirs[index]
            if failure := differences(image, tolerance, self._honest[case], *both):
                return failure
        return self.overtime.check(of_a_round=True)

    def most_calls(self, case: str) -> int:
        """How many calls fit into one request."""
        return self._arena.most_calls(case)

    def _plausible(self, outcome: Timing | Failure, device: Device) -> Timing | Failure:
        """Fail a timing that is much faster than the device's peak allows."""
        if isinstance(outcome, Failure):
            return outcome
        peak = max(device.peak_flops.values(), default=math.inf)
        for timed in outcome.cases:
            dimensions = self._arena.cases[timed.case].dimensions
            floor_s = evaluate(self._arena.problem.flops, dimensions) / peak
            if timed.runtime_s * _TOO_FAST_FACTOR < floor_s:
                return Failure(
                    kind=FailureKind.CHEATING,
                    message=f"case {timed.case}: {timed.runtime_s:.3g} s is less than an eighth of "
                    f"what the stated work takes at the device's peak ({floor_s:.3g} s)",
                )
        return outcome

    def _place(self, case: str, calls: int) -> None:
        stride = self._arena.layouts[case].stride
        self._base = stride * int(self._rng.integers(self._arena.size // stride - calls + 1))

    def _slots(self, child: Child, case: str, calls: int) -> Slots:
        stride = self._arena.layouts[case].stride
        return child.memory[self._base : self._base + calls * stride].reshape(calls, stride)

    def _timed(self, child: Child, case: str, calls: int) -> float | Failure:
        limit_s = self._limit_s(case, calls)
        seconds = self._in_time(child, child.run(case, calls, self._base, limit_s))
        if child is self._candidate and not isinstance(seconds, Failure):
            self.overtime.worked(seconds)
        return seconds

    def _in_time(self, child: Child, seconds: float | Failure) -> float | Failure:
        """Pass on the seconds of a request; raise if the deadline or a busy machine ended it."""
        late = isinstance(seconds, Failure) and seconds.kind is FailureKind.TIMEOUT
        if late and (child.starved or time.perf_counter() >= self._deadline):
            raise OutOfTime
        return seconds

    def _limit_s(self, case: str, calls: int) -> float:
        """The limit of a request of so many calls from now on."""
        left_s = self._deadline - time.perf_counter()
        if left_s <= 0.0:
            raise OutOfTime
        return min(_TIMEOUT_SLACK_S + calls * self._call_limit_s[case], left_s)
