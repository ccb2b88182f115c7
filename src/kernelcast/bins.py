"""Bins of speedup: one table of edges and names for prompts, labels, metrics and rewards.

Belongs here: what a bin is and how it is printed. Probabilities over bins live in
`distribution.py`, scores of them in `scoring.py`.

A label and its printed range always agree, because every edge is printed with the shortest digits
that read back as exactly that edge, and every range says in words which of its ends it includes.
"""

import math
import re
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, model_validator

_BELOW = re.compile(r"under (\S+)x")
_BETWEEN = re.compile(r"(\S+)x to under (\S+)x")
_ABOVE = re.compile(r"(\S+)x or more")


class Bins(BaseModel):
    """Ordered, half-open bins of speedup: bin `i` holds `edges[i - 1] <= speedup < edges[i]`.

    The first bin has no lower edge and the last no upper one, so every positive speedup has exactly
    one bin, and there is one label more than there are edges.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    edges: tuple[float, ...]
    labels: tuple[str, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.edges or self.edges[0] <= 0.0:
            raise ValueError("edges must hold at least one speedup, all above 0")
        if any(high <= low for low, high in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError("edges must be strictly increasing")
        if len(self.labels) != len(self.edges) + 1:
            raise ValueError(f"{len(self.edges)} edges make {len(self.edges) + 1} labels")
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("labels must differ from each other")
        return self

    @property
    def count(self) -> int:
        """Number of bins."""
        return len(self.labels)

    @property
    def log2_edges(self) -> tuple[float, ...]:
        """The edges as log2 speedups."""
        return tuple(math.log2(edge) for edge in self.edges)

    def index(self, speedup: float) -> int:
        """The bin that holds this speedup."""
        return int(self.indices(speedup))

    def indices(self, speedups: ArrayLike) -> NDArray[np.intp]:
        """The bin of each speedup, in the shape given."""
        values = np.asarray(speedups, dtype=np.float64)
        if not np.all(np.isfinite(values) & (values > 0.0)):
            raise ValueError("a speedup is positive and finite; leave failed kernels out")
        return np.asarray(np.searchsorted(self.edges, values, side="right"), dtype=np.intp)

    def label(self, index: int) -> str:
        """The short name of a bin."""
        return self.labels[self._checked(index)]

    def bounds(self, index: int) -> tuple[float, float]:
        """The exact speedups `(low, high)` of a bin: low is inside it, high is not."""
        edges = (0.0, *self.edges, math.inf)
        index = self._checked(index)
        return edges[index], edges[index + 1]

    def range_text(self, index: int) -> str:
        """The bin's range as printed, such as `0.71x to under 0.97x`; see `parse_range`."""
        low, high = self.bounds(index)
        if low == 0.0:
            return f"under {_shortest(high)}x"
        if high == math.inf:
            return f"{_shortest(low)}x or more"
        return f"{_shortest(low)}x to under {_shortest(high)}x"

    @staticmethod
    def parse_range(text: str) -> tuple[float, float]:
        """The `bounds` that a printed range states, from its digits alone."""
        if match := _BELOW.fullmatch(text):
            return 0.0, float(match[1])
        if match := _BETWEEN.fullmatch(text):
            return float(match[1]), float(match[2])
        if match := _ABOVE.fullmatch(text):
            return float(match[1]), math.inf
        raise ValueError(f"{text!r} is not a range printed by Bins.range_text")

    def table(self) -> str:
        """Every bin on a line of its own, with its label and range, for use in a prompt."""
        return "\n".join(
            f"bin {index} ({label}): {self.range_text(index)}"
            for index, label in enumerate(self.labels)
        )

    def _checked(self, index: int) -> int:
        if not 0 <= index < self.count:
            raise IndexError(f"bins {self.name!r} run from 0 to {self.count - 1}, not {index}")
        return index


def _shortest(edge: float) -> str:
    # repr is the shortest text that reads back as the same float: agreement rests on this line.
    return repr(edge).removesuffix(".0")


PAPER_BINS = Bins(
    name="paper",
    edges=(0.25, 0.5, math.sqrt(0.5), 1.0, math.sqrt(2.0), 2.0, 4.0),
    labels=(
        "far slower",
        "much slower",
        "slower",
        "slightly slower",
        "slightly faster",
        "faster",
        "much faster",
        "far faster",
    ),
)
"""The paper's eight bins, at the half powers of two; for comparison with its published figures."""

DEFAULT_BINS = Bins(
    name="default",
    edges=(0.25, 0.5, 0.71, 0.97, 1.03, 1.41, 2.0, 4.0),
    labels=(
        "far slower",
        "much slower",
        "slower",
        "slightly slower",
        "tie",
        "slightly faster",
        "faster",
        "much faster",
        "far faster",
    ),
)
"""Nine bins: 1x lies inside a tie band, since 3% is within what repeated timing can turn round.

The edges near the square roots of two are the two-digit numbers themselves, so prompts stay short.
"""
