"""The sealed envelope: two processes, inputs that nobody has seen, outputs that are all verified.

The reference is trusted, the candidate is not. Both get the same fresh inputs at the same fresh
addresses in memory of their own, one request at a time; the candidate's outputs are copied when
its reply is there and compared with the reference's, and in the verification calls with the
oracle's. Time that the candidate works outside of its calls is cheating.
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
from kernelcast.backends._verify import Errors, Image, Sample, differences
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
    """One measurement: both processes, and everything that neither of them may know."""

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
        # Cores differ, in speed and in company: a comparison is made on one of them.
        candidate.core = reference.core = int(rng.choice(candidate.cores))

    def measure(
        self,
        samples: Sequence[Sample],
        precision: Precision,
        device: Device,
        flush_bytes: int = 0,
    ) -> Timing | Failure:
        """Verify on every sample, then time; the first failure ends it.

        Raises:
            OutOfTime: The deadline passed, or a process was starved, before the first round ended.
            ReferenceLost: The reference failed.
        """
        self._flush = np.zeros(flush_bytes, np.uint8)
        timed = [case.name for case in self._arena.problem.timed_cases]
        if failure := self._verify(samples):
            return failure
        outcome = time_pairs(timed, self, self._rng, precision, self._deadline)
        return self._plausible(outcome, device)

    # ------------------------------------------------------------------------- verification

    def _verify(self, samples: Sequence[Sample]) -> Failure | None:
        honest = [self._honest_errors(sample) for sample in samples]
        for sample, errors in zip(samples, honest, strict=True):
            if errors is None:
                continue
            self._honest[sample.image.case.name] = errors
            slot = self._called(self._candidate, sample)
            if isinstance(slot, Failure):
                return slot
            if failure := sample.check(slot, errors):
                return failure
        return self.overtime.check()

    def _honest_errors(self, sample: Sample) -> Errors | None:
        """How precise the reference is here; None where these magnitudes are too much for it."""
        case = sample.image.case
        slot = self._called(self._reference, sample)
        if isinstance(slot, Failure):
            raise ReferenceLost(slot)
        errors = sample.errors(slot)
        if case.scale != 1.0:
            worst = max((each.worst for each in errors.values()), default=0.0)
            return errors if math.isfinite(worst) else None
        if failure := sample.check(slot):
            raise ReferenceLost(failure)
        return errors

    def _called(self, child: Child, sample: Sample) -> Slots | Failure:
        """The slot after one call on the sample's inputs."""
        case = sample.image.case.name
        self._place(case, 1)
        slot: Slots = self._slots(child, case, 1)[0]
        slot[:] = sample.image.content
        seconds = self._timed(child, case, 1)
        if isinstance(seconds, Failure):
            return seconds
        if child is self._reference:
            # From now on, very much slower calls than the reference's are cut short.
            self._call_limit_s[case] = _TIMEOUT_FACTOR * seconds
        return slot

    # ------------------------------------------------------------------------------- timing

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
            # What counts is what is there when the reply is.
            slots = self._slots(child, case, calls)
            if self._taken.shape != slots.shape:  # new memory costs more than the copy
                self._taken = np.empty_like(slots)
            self._taken[:] = slots
        elif isinstance(seconds, Failure):
            raise ReferenceLost(seconds)
        return seconds

    def idle(self, case: str, calls: int) -> float | Failure:
        """Seconds of a request without the work, of the process that can be trusted.

        The other one is asked as well, or it would be the one that rested longer.
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
        """Nothing is much faster than the device can be, whatever the algorithm saves."""
        problem = self._arena.problem
        peak = max(device.peak_flops.values(), default=math.inf)
        if isinstance(outcome, Failure):
            return outcome
        for timed in outcome.cases:
            dimensions = self._arena.cases[timed.case].dimensions
            floor_s = evaluate(problem.flops, dimensions) / peak
            if timed.runtime_s * _TOO_FAST_FACTOR < floor_s:
                return Failure(
                    kind=FailureKind.CHEATING,
                    message=f"case {timed.case}: {timed.runtime_s:.3g} s is less than an eighth of "
                    f"what the stated work takes at the device's peak ({floor_s:.3g} s)",
                )
        return outcome

    # -------------------------------------------------------------------------- both of them

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
        """What a request took, unless the deadline or a busy machine ended it."""
        late = isinstance(seconds, Failure) and seconds.kind is FailureKind.TIMEOUT
        if late and (child.starved or time.perf_counter() >= self._deadline):
            raise OutOfTime
        return seconds

    def _limit_s(self, case: str, calls: int) -> float:
        """What a request of so many calls may take from now, never nothing."""
        left_s = self._deadline - time.perf_counter()
        if left_s <= 0.0:
            raise OutOfTime
        return min(_TIMEOUT_SLACK_S + calls * self._call_limit_s[case], left_s)
