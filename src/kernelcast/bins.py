"""Bins of speedup: one table of edges and names for prompts, labels, metrics and rewards.

Probabilities over bins live in `distribution.py`, scores of them in `scoring.py`.

The label of a speedup and the printed range of its bin always agree: every edge is printed with
the shortest digits that read back as exactly that edge, and every range says which end it includes.
"""

import math
from bisect import bisect_right
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, model_validator

_NO_SPEEDUP = "a speedup is positive and finite; leave failed kernels out"


class Bins(BaseModel):
    """Ordered, half-open bins of speedup: bin `i` holds `edges[i - 1] <= speedup < edges[i]`.

    The first bin has no lower edge and the last has no upper edge, so every positive speedup is in
    exactly one bin, and there is one more label than there are edges.
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

    @cached_property
    def log2_edges(self) -> tuple[float, ...]:
        """The edges as log2 speedups."""
        return tuple(math.log2(edge) for edge in self.edges)

    def index(self, speedup: float) -> int:
        """Return the number of the bin that holds this speedup; see `indices`."""
        if not 0.0 < speedup < math.inf:
            raise ValueError(_NO_SPEEDUP)
        return bisect_right(self.edges, speedup)

    def indices(self, speedups: ArrayLike) -> NDArray[np.intp]:
        """Return the number of the bin of each speedup, in the same shape.

        Raises:
            ValueError: A speedup is not positive or not finite.
        """
        values = np.asarray(speedups, dtype=np.float64)
        if not np.all(np.isfinite(values) & (values > 0.0)):
            raise ValueError(_NO_SPEEDUP)
        return np.asarray(np.searchsorted(self.edges, values, side="right"), dtype=np.intp)

    def range_text(self, index: int) -> str:
        """Return the printed range of a bin, such as `0.71x to under 0.97x`.

        Raises:
            IndexError: There is no such bin.
        """
        if not 0 <= index < self.count:
            raise IndexError(f"bins {self.name!r} run from 0 to {self.count - 1}, not {index}")
        # repr is the shortest text that reads back as the same float.
        edges = [repr(edge).removesuffix(".0") for edge in self.edges]
        if index == 0:
            return f"under {edges[0]}x"
        if index == len(edges):
            return f"{edges[-1]}x or more"
        return f"{edges[index - 1]}x to under {edges[index]}x"

    def table(self) -> str:
        """Return one line per bin, with its label and range, for use in a prompt."""
        return "\n".join(
            f"bin {index} ({label}): {self.range_text(index)}"
            for index, label in enumerate(self.labels)
        )


_SLOWER = ("far slower", "much slower", "slower", "slightly slower")
_FASTER = ("slightly faster", "faster", "much faster", "far faster")

PAPER_BINS = Bins(
    name="paper",
    edges=(0.25, 0.5, math.sqrt(0.5), 1.0, math.sqrt(2.0), 2.0, 4.0),
    labels=(*_SLOWER, *_FASTER),
)
"""The paper's eight bins, at the half powers of two; for comparison with its published figures."""

DEFAULT_BINS = Bins(
    name="default",
    edges=(0.25, 0.5, 0.71, 0.97, 1.03, 1.41, 2.0, 4.0),
    labels=(*_SLOWER, "tie", *_FASTER),
)
"""Nine bins: 1x lies in a tie band, because repeated timings can differ by 3%.

Edges near the square roots of two have two digits, which keeps prompts short.
"""

BINS = {bins.name: bins for bins in (DEFAULT_BINS, PAPER_BINS)}
"""The tables by name."""
