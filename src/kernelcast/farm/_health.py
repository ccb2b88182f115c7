"""Whether a slot's measurements can be believed: its noise, its memory, and what others measure.

The backend times the reference against itself every half hour, and each measurement carries the
result (`noise_log2`) and what disturbed it. A slot whose noise grows beyond what was usual there
drifts: what it has measured since its last good check is measured again elsewhere.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from kernelcast.types import MEMORY_ERROR, SMALLEST_CLAIM_LOG2, FailureKind, Measurement

_DRIFT = 3.0  # times the usual noise
_CHECKS = 9  # of which the median is usual
_STEADY = 3  # checks in a row with much, but equal noise, after which it is usual
_EQUAL = 1.5  # largest ratio of equal noises
_APART_LOG2 = 0.25  # beside twice the noise, by which two nodes do not measure the same speed


class Health:
    """The checks of one slot, by problem; times of different problems have different noise."""

    def __init__(self) -> None:
        self._usual: dict[str, deque[float]] = {}
        self._latest: dict[str, float] = {}
        self._excess: deque[float] = deque(maxlen=_STEADY)
        self.reason = ""
        """Why the slot is not believed; empty if it is."""

    def see(self, measurement: Measurement) -> bool:
        """Judge the slot by a measurement; return whether that was a new check, and a good one."""
        key, noise = measurement.problem_id, measurement.noise_log2
        if MEMORY_ERROR in measurement.conditions:
            self.reason = MEMORY_ERROR
            return False
        if noise is None or (self._latest.get(key) == noise and not self.reason):
            return False
        self._latest[key] = noise
        usual = self._usual.setdefault(key, deque(maxlen=_CHECKS))
        most = _DRIFT * max(median(usual) if usual else noise, SMALLEST_CLAIM_LOG2)
        if noise > most:
            self._excess.append(noise)
            if len(self._excess) < _STEADY or max(self._excess) > _EQUAL * min(self._excess):
                self.reason = (
                    f"its noise is {2**noise - 1:.1%}, and {2 ** (most / _DRIFT) - 1:.1%} was usual"
                )
                return False
            usual.clear()  # the machine has changed, and is steady again
        self._excess.clear()
        usual.append(noise)
        self.reason = ""
        return True


def disagree(first: Measurement, second: Measurement) -> bool:
    """Return whether two measurements cannot both be true of one kernel.

    A noise that is not known excuses no difference.
    """
    if first.timing is None or second.timing is None:
        failures = [m.failure for m in (first, second) if m.failure is not None]
        # A busy machine can cause a timeout.
        return len(failures) == 1 and failures[0].kind is not FailureKind.TIMEOUT
    noise_log2 = max(first.noise_log2 or 0.0, second.noise_log2 or 0.0)
    apart = abs(first.timing.log2_speedup - second.timing.log2_speedup)
    return apart > _APART_LOG2 + 2.0 * noise_log2
