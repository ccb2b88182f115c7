"""What may come of a candidate: a cause of failure, or a bin of speedup over its anchor.

Exactly one outcome comes true. Prompts name them, answers share their chance over them, and rewards
score the shares. A language model may write its shares as digits: the letter of the likeliest
outcome, then a digit from 0 to 9 for each outcome, in proportion to its chance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from string import ascii_uppercase
from typing import Any, NamedTuple

import numpy as np

from kernelcast.bins import DEFAULT_BINS, Bins
from kernelcast.types import FailureKind

# Cheating is left out: verification finds it, a forecast does not.
CAUSES = (
    FailureKind.COMPILE_ERROR,
    FailureKind.WRONG_RESULT,
    FailureKind.CRASH,
    FailureKind.TIMEOUT,
)

POINTS = 100
"""What an answer in points shares over the outcomes."""

_BETWEEN = r"[\s,.:;|]*"


class Shares(NamedTuple):
    """An answer: the outcome that it calls the likeliest, and the chance of each, which sum to 1.

    `raw_sum` is what the chances summed to as they were written.
    """

    likeliest: int
    chances: tuple[float, ...]
    raw_sum: float = 1.0

    @classmethod
    def of(cls, weights: Sequence[float], unit: float = 1.0) -> Shares:
        """Scale weights to chances; `unit` is what they should have summed to."""
        total = math.fsum(weights)
        likeliest = max(range(len(weights)), key=weights.__getitem__)
        return cls(likeliest, tuple(weight / total for weight in weights), total / unit)


@dataclass(frozen=True)
class Outcomes:
    """The causes of failure, then the bins of speedup; numbered from 0 in this order."""

    bins: Bins = DEFAULT_BINS

    @property
    def count(self) -> int:
        """Number of outcomes."""
        return len(CAUSES) + self.bins.count

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """A name for each outcome, without spaces."""
        labels = (label.replace(" ", "_") for label in self.bins.labels)
        return (*(cause.value for cause in CAUSES), *labels)

    @property
    def letters(self) -> str:
        """A letter for each outcome."""
        return ascii_uppercase[: self.count]

    def table(self) -> str:
        """Return one line per outcome, with its letter and meaning, for use in a prompt."""
        ranges = (f"right, {self.bins.range_text(index)}" for index in range(self.bins.count))
        meanings = (*(f"fails: {cause.value}" for cause in CAUSES), *ranges)
        return "\n".join(
            f"{letter}: {key.replace('_', ' ')} ({meaning})"
            for letter, key, meaning in zip(self.letters, self.keys, meanings, strict=True)
        )

    def index(self, failure: FailureKind | None, log2_speedup: float | None) -> int | None:
        """Return the number of what happened; None for what no forecast is about.

        That is cheating, and a right kernel that was not timed.
        """
        if failure is not None:
            return CAUSES.index(failure) if failure in CAUSES else None
        if log2_speedup is None:
            return None
        return len(CAUSES) + self.bins.index(2.0**log2_speedup)

    def digits(self, chances: Sequence[float], likeliest: int | None = None) -> str:
        """Write chances as the letter of the likeliest outcome and a digit for each."""
        shares = np.asarray(chances, dtype=np.float64)
        digits = np.rint(9.0 * shares / shares.max()).astype(int).tolist()
        first = int(shares.argmax()) if likeliest is None else likeliest
        return self.letters[first] + "".join(map(str, digits))

    def read_digits(self, text: str) -> Shares | None:
        """Read what `digits` wrote, whatever stands between; None if it is anything else."""
        match = self._written_digits.fullmatch(text.strip())
        if match is None:
            return None
        digits = [int(digit) for digit in re.findall(r"\d", match["digits"])]
        total = sum(digits)
        if not total:
            return None
        chances = tuple(digit / total for digit in digits)
        return Shares(self.letters.index(match["letter"]), chances)

    def read_points(self, answer: Mapping[str, Any] | None) -> Shares | None:
        """Read points by key; None if one is missing or invalid, or if all are 0."""
        values = [(answer or {}).get(key) for key in self.keys]
        points = [
            float(value)
            for value in values
            if isinstance(value, int | float)
            and not isinstance(value, bool)
            and 0 <= value <= POINTS
        ]
        if len(points) < len(values):
            return None
        return Shares.of(points, POINTS) if any(points) else None

    @cached_property
    def _written_digits(self) -> re.Pattern[str]:
        digits = rf"(?:\d{_BETWEEN}){{{self.count}}}"
        return re.compile(rf"(?P<letter>[{self.letters}]){_BETWEEN}(?P<digits>{digits})")
