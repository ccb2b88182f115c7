"""A match: one source against the seed kernel, repeated until there is a verdict.

Every attempt has new processes and new inputs. Two things are no verdict:

- Doubt: the seed kernel's process failed, or the candidate took CPU time outside of its calls,
  which a busy machine may charge to an honest kernel. The attempt is repeated at once, twice at
  most.
- A busy machine: time ran out while the processes got less than half of a core, and in all less
  CPU time than the match may take. The match pauses, logs it, and repeats the attempt with twice
  the time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np

from kernelcast.backends._arena import Arena
from kernelcast.backends._child import STARVED, Child
from kernelcast.backends._envelope import Envelope, ReferenceLost
from kernelcast.backends._inputs import FreshInputs
from kernelcast.backends._timing import OutOfTime, Precision
from kernelcast.backends._verify import KnownAnswer
from kernelcast.errors import ProblemError
from kernelcast.types import Device, Failure, FailureKind, Timing

_LOAD_TIMEOUT_S = 20.0
_CLEANUP_MARGIN_S = 0.5
_REPEATS = 2
_LONGEST_PAUSE_S = 30.0
_MOST_TIME_FACTOR = 8

_log = logging.getLogger("kernelcast.backends")


class MachineBusy(Exception):
    """No attempt ended in a verdict, because the machine gave the kernels too little CPU time."""

    def __init__(self, share: float, seconds: float) -> None:
        spoken = f"{seconds / 60:.0f} minutes" if seconds >= 90.0 else f"{seconds:.0f} seconds"
        super().__init__(
            f"the machine was too busy: it gave the kernels {share:.0%} of a core for {spoken}"
        )


@dataclass(frozen=True)
class _Attempt:
    """The outcome of one attempt, and the share of a core that the processes got."""

    outcome: Timing | Failure | ReferenceLost
    share: float
    starved: bool
    doubtful: bool = False


@dataclass
class Match:
    """What the attempts of one match have in common. `device_s` is what they took so far.

    An attempt may take `time_factor` times `cap_s`, but `device_s` never exceeds `cap_s`: neither
    pauses nor what a busy machine adds are charged.
    """

    arena: Arena
    start: Callable[[], AbstractContextManager[tuple[Child, Child]]]
    draw: Callable[[], tuple[Sequence[KnownAnswer], Mapping[str, FreshInputs]]]
    rng: np.random.Generator
    precision: Precision
    device: Device
    flush_bytes: int
    cap_s: float
    tries: int
    pause: Callable[[float], object]
    time_factor: int = 1
    device_s: float = field(default=0.0, init=False)

    def play(self) -> Timing | Failure:
        """The verdict on the candidate; a timeout of the seed kernel is one of the candidate too.

        Raises:
            ProblemError: The seed kernel failed in every attempt.
            MachineBusy: The machine was too busy in every attempt.
        """
        began = time.perf_counter()
        repeats = pauses = 0
        while True:
            attempt = self._attempt()
            if attempt.starved:
                self.time_factor = min(2 * self.time_factor, _MOST_TIME_FACTOR)
                pauses += 1
                if pauses < self.tries:
                    self._rest(attempt.share, pauses)
                elif isinstance(attempt.outcome, Timing):
                    return attempt.outcome
                else:
                    raise MachineBusy(attempt.share, time.perf_counter() - began)
            elif attempt.doubtful and repeats < _REPEATS:
                repeats += 1
            elif isinstance(attempt.outcome, ReferenceLost):
                return self._without_reference(attempt.outcome)
            else:
                return attempt.outcome

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

    def _attempt(self) -> _Attempt:
        with self.start() as (candidate, reference):
            # The processes start while the inputs are drawn, and then wait for their first request.
            answers, fresh = self.draw()
            # Loading the device's runtime is not device time.
            if failure := reference.load(_LOAD_TIMEOUT_S):
                starved = reference.starved
                return _Attempt(ReferenceLost(failure), reference.share, starved, doubtful=True)
            started = time.perf_counter()
            candidate.deadline = started + self.time_factor * self.cap_s - _CLEANUP_MARGIN_S
            try:
                if failure := candidate.load(min(_LOAD_TIMEOUT_S, self.cap_s)):
                    return _Attempt(failure, candidate.share, candidate.starved)
                envelope = Envelope(
                    self.arena, candidate, reference, fresh, self.rng, candidate.deadline
                )
                return self._measured(envelope, answers, candidate, reference)
            finally:
                self.device_s = min(self.cap_s, self.device_s + time.perf_counter() - started)

    def _measured(
        self,
        envelope: Envelope,
        answers: Sequence[KnownAnswer],
        candidate: Child,
        reference: Child,
    ) -> _Attempt:
        outcome: Timing | Failure | ReferenceLost
        started, cpu_before_s = time.perf_counter(), time.thread_time()
        out_of_time = doubtful = False
        try:
            outcome = envelope.measure(answers, self.precision, self.device, self.flush_bytes)
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
        given_s = time.thread_time() - cpu_before_s + reference.given_s
        wall_s = time.perf_counter() - started - candidate.wall_s
        share = min(given_s / wall_s, candidate.share, reference.share)
        had_its_time = given_s + candidate.given_s >= self.cap_s - _CLEANUP_MARGIN_S
        starved = out_of_time and share < STARVED and not had_its_time
        return _Attempt(outcome, share, starved, doubtful)
