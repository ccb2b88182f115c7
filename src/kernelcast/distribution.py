"""A probability distribution over log2 speedup, and the ways to make one.

Every forecaster emits this representation and every policy reads it. The CDF is piecewise linear,
so means, intervals, bin probabilities and expected improvement are exact sums, and a forecast is a
short JSON list. Scores live in `scoring.py`.
"""

import math
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import pairwise
from typing import Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, model_validator

from kernelcast.bins import Bins

Floats = NDArray[np.float64]
_Real = TypeVar("_Real", float, Floats)  # what a function of a number or of an array returns

_NORMAL_Z = np.linspace(-4.0, 4.0, 33)
_SAMPLE_LEVELS = np.concatenate(
    ([1e-4, 1e-3, 1e-2], np.arange(1, 32) / 32, [1 - 1e-2, 1 - 1e-3, 1 - 1e-4])
)
_OPEN_BIN_OCTAVES = np.array([1.0, 2.0, 4.0])
_OPEN_BIN_SHARES_BEYOND = np.array([1 / 2, 1 / 4, 0.0])

# Tied quantiles are spread this far apart: 0.07%, finer than any timing.
_TIE_WIDTH = 1e-3
# Closer knots are merged: rounding errors in the CDF would appear as density between them.
_MERGE_WIDTH = 1e-9


class Distribution(BaseModel):
    """A distribution over log2 speedup: 0 is a tie, 1 is twice as fast.

    `cdf_values[i]` is the probability of at most `knots[i]`. Between knots the density is constant;
    all mass lies between the first and the last knot.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    knots: tuple[float, ...]
    cdf_values: tuple[float, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.knots) != len(self.cdf_values) or len(self.knots) < 2:
            raise ValueError("knots and cdf_values must have the same length, at least 2")
        # Plain Python takes a tenth of NumPy's time for so few numbers.
        if not all(map(operator.lt, self.knots, self.knots[1:])):
            raise ValueError("knots must be strictly increasing")
        if self.cdf_values[0] != 0.0 or self.cdf_values[-1] != 1.0:
            raise ValueError("cdf_values must run from exactly 0 to exactly 1")
        if not all(map(operator.le, self.cdf_values, self.cdf_values[1:])):
            raise ValueError("cdf_values must not decrease")
        return self

    @classmethod
    def from_bins(cls, bins: Bins, probabilities: ArrayLike) -> Self:
        """Spread each bin's probability evenly over the bin in log2.

        An open outer bin gets a tail of four octaves: half of its mass in the first octave beyond
        the edge, a quarter in the second, and a quarter in the last two.

        Args:
            bins: The bins.
            probabilities: One number per bin; they are normalised.
        """
        mass = _normalised(probabilities, "probabilities")
        if mass.shape != (bins.count,):
            raise ValueError(f"bins {bins.name!r} need {bins.count} probabilities, not {mass.size}")
        edges = np.array(bins.log2_edges)
        knots = (edges[0] - _OPEN_BIN_OCTAVES[::-1], edges, edges[-1] + _OPEN_BIN_OCTAVES)
        below = mass[0] * _OPEN_BIN_SHARES_BEYOND[::-1]
        above = 1.0 - mass[-1] * _OPEN_BIN_SHARES_BEYOND
        values = (below, np.cumsum(mass[:-1]), above)
        return cls._exact_ends(np.concatenate(knots), np.concatenate(values))

    @classmethod
    def from_quantiles(cls, levels: ArrayLike, values: ArrayLike) -> Self:
        """Interpolate quantiles: `values[i]` is the log2 speedup at probability `levels[i]`.

        The quantiles of a normal distribution give back that distribution: between levels the
        interpolation is on the normal scale, and beyond them it follows the normal through the
        outermost and the middle quantile, up to four standard deviations. Crossed values are
        sorted; tied ones are spread by a thousandth of an octave.
        """
        return cls.all_from_quantiles(levels, [np.asarray(values, dtype=np.float64)])[0]

    @classmethod
    def all_from_quantiles(cls, levels: ArrayLike, rows: ArrayLike) -> list[Self]:
        """Do `from_quantiles` for each row of values, at a fraction of the cost of one by one."""
        p = tuple(np.asarray(levels, dtype=np.float64).tolist())
        z, with_ends, places, cdf_values = _quantile_grid(p)
        x = np.sort(np.asarray(rows, dtype=np.float64), axis=-1)
        if x.shape != (len(x), z.size):
            raise ValueError(f"{z.size} levels need as many values, not {x[0].size}")
        x = _spread_apart(x, _TIE_WIDTH)
        low_middle, high_middle = z.size // 2, (z.size - 1) // 2
        low_scale = (x[:, low_middle] - x[:, 0]) / (z[low_middle] - z[0])
        high_scale = (x[:, -1] - x[:, high_middle]) / (z[-1] - z[high_middle])
        low = x[:, 0] + low_scale * (with_ends[0] - z[0])
        high = x[:, -1] + high_scale * (with_ends[-1] - z[-1])
        ends = np.column_stack([low, x, high])
        left = np.minimum(np.searchsorted(with_ends, places, side="right") - 1, z.size)
        slope = np.diff(ends) / np.diff(with_ends)
        knots = slope[:, left] * (places - with_ends[left]) + ends[:, left]
        knots[:, -1] = high
        first = cls._exact_ends(knots[0], cdf_values)
        others = (tuple(row) for row in knots[1:].tolist())
        return [first, *(cls(knots=row, cdf_values=first.cdf_values) for row in others)]

    @classmethod
    def from_samples(
        cls, samples: ArrayLike, bandwidth: float | None = None, weights: ArrayLike | None = None
    ) -> Self:
        """Smooth samples of log2 speedup: a normal kernel of std `bandwidth` around each.

        The CDF is exact at 37 knots, at most 1/32 of probability apart.

        Args:
            samples: The log2 speedups.
            bandwidth: Standard deviation of the kernel; by default from Silverman's rule, which
                needs samples that differ.
            weights: One number per sample; they are normalised.
        """
        x = np.asarray(samples, dtype=np.float64)
        if x.ndim != 1 or x.size == 0 or not np.all(np.isfinite(x)):
            raise ValueError("samples must be a non-empty list of finite numbers")
        share = _normalised(np.ones_like(x) if weights is None else weights, "weights")
        if share.shape != x.shape:
            raise ValueError(f"{x.size} samples need as many weights, not {share.size}")
        if bandwidth is None:
            spread = math.sqrt(share @ (x - share @ x) ** 2)
            bandwidth = 0.9 * spread * float(share @ share) ** 0.2
        if not bandwidth > _TIE_WIDTH:
            raise ValueError(
                f"bandwidth {bandwidth:.3g} is too narrow to be honest: samples without spread "
                f"need an explicit bandwidth above {_TIE_WIDTH}"
            )

        from scipy.special import ndtr  # not at the top: it takes a third of a second

        def smoothed_cdf(at: Floats) -> Floats:
            return np.asarray(ndtr((at[:, None] - x) / bandwidth) @ share, dtype=np.float64)

        low = np.full(_SAMPLE_LEVELS.size, x.min() - 5.0 * bandwidth)
        high = np.full(_SAMPLE_LEVELS.size, x.max() + 5.0 * bandwidth)
        # A knot may be slightly off its level: the CDF is evaluated where the bisection ends.
        for _ in range(math.ceil(math.log2((high[0] - low[0]) / (bandwidth * 1e-2)))):
            middle = (low + high) / 2.0
            below = smoothed_cdf(middle) < _SAMPLE_LEVELS
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        knots = _spread_apart(np.sort((low + high) / 2.0), _MERGE_WIDTH)
        return cls._exact_ends(knots, smoothed_cdf(knots))

    @classmethod
    def normal(cls, mean: float, std: float) -> Self:
        """Return a normal distribution, cut at four standard deviations, on 33 knots."""
        if not std > 0.0:
            raise ValueError(f"std must be above 0, not {std}")
        return cls._exact_ends(mean + std * _NORMAL_Z, _normal_cdf())

    @classmethod
    def mixture(cls, components: Sequence["Distribution"], weights: ArrayLike) -> Self:
        """Return the weighted average of the components' CDFs, on all of their knots.

        The average is exact, except that knots within 1e-9 of each other are merged. `weights` are
        normalised.
        """
        if not components:
            raise ValueError("a mixture needs at least one component")
        share = _normalised(weights, "weights")
        if share.shape != (len(components),):
            raise ValueError(f"{len(components)} components need as many weights, not {share.size}")
        used = [(part, s) for part, s in zip(components, share, strict=True) if s > 0.0]
        union = np.unique(np.concatenate([part.knots for part, _ in used]))
        knots = [union[0]]
        for knot in union[1:-1]:
            if knot - knots[-1] > _MERGE_WIDTH and union[-1] - knot > _MERGE_WIDTH:
                knots.append(knot)
        x = np.array([*knots, union[-1]])
        return cls._exact_ends(x, np.sum([s * part.cdf(x) for part, s in used], axis=0))

    def product(self, other: "Distribution") -> "Distribution":
        """Return the distribution of a speedup that two independent sources forecast.

        Its density is proportional to the product of both. Where both exclude what the other one
        says, it is their average.
        """
        both = Distribution.mixture([self, other], (0.5, 0.5))
        knots = np.array(both.knots)
        width = np.diff(knots)
        mass = np.diff(self.cdf(knots)) * np.diff(other.cdf(knots)) / width
        if not mass.sum() > 0.0:
            return both
        kept = slice(np.flatnonzero(mass)[0], np.flatnonzero(mass)[-1] + 1)
        below = np.concatenate([[0.0], np.cumsum(mass[kept]) / mass.sum()])
        return Distribution._exact_ends(knots[kept.start : kept.stop + 1], below)

    def cdf(self, x: _Real) -> _Real:
        """Return P(log2 speedup <= x)."""
        if isinstance(x, np.ndarray):
            return np.clip(np.interp(x, self.knots, self.cdf_values), 0.0, 1.0)
        # One number: the same formula in plain Python takes a tenth of NumPy's time.
        knots, values = self.knots, self.cdf_values
        if math.isnan(x) or x < knots[0]:
            return x if math.isnan(x) else 0.0
        right = bisect_right(knots, x)
        if right == len(knots):
            return 1.0
        left = right - 1
        slope = (values[right] - values[left]) / (knots[right] - knots[left])
        return min(max(float(slope * (x - knots[left]) + values[left]), 0.0), 1.0)

    def density(self, x: _Real) -> _Real:
        """Return the probability per unit of log2 speedup at x; 0 outside the outer knots.

        At a knot the segment above counts, at the last knot the segment below.
        """
        knots = np.array(self.knots)
        at = np.asarray(x, dtype=np.float64)
        slopes = np.diff(self.cdf_values) / np.diff(knots)
        segment = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, slopes.size - 1)
        value = np.where((at >= knots[0]) & (at <= knots[-1]), slopes[segment], 0.0)
        return value if isinstance(x, np.ndarray) else float(value)

    def quantile(self, p: _Real) -> _Real:
        """Return the least log2 speedup with a CDF of at least p; for p = 0 the least with mass."""
        if not np.all((p >= 0.0) & (p <= 1.0)) if isinstance(p, np.ndarray) else not 0 <= p <= 1:
            raise ValueError("a probability lies between 0 and 1")
        first_mass = bisect_right(self.cdf_values, 0.0)
        if not isinstance(p, np.ndarray):
            at = max(bisect_left(self.cdf_values, p), first_mass)
            low, high = self.cdf_values[at - 1 : at + 1]
            before, after = self.knots[at - 1 : at + 1]
            return float(before + (p - low) / (high - low) * (after - before))
        knots, values = np.array(self.knots), np.array(self.cdf_values)
        right = np.maximum(np.searchsorted(values, p, side="left"), first_mass)
        left = right - 1
        fraction = (p - values[left]) / (values[right] - values[left])
        value: Floats = knots[left] + fraction * (knots[right] - knots[left])
        return value

    def mean(self) -> float:
        """Return the expected log2 speedup."""
        mass, middle, _ = self._segments()
        return float(mass @ middle)

    def std(self) -> float:
        """Return the standard deviation of log2 speedup."""
        mass, middle, width = self._segments()
        return math.sqrt(mass @ ((middle - mass @ middle) ** 2 + width**2 / 12.0))

    def probability_above(self, log2_x: float) -> float:
        """Return P(log2 speedup > log2_x)."""
        return 1.0 - self.cdf(log2_x)

    def interval(self, level: float) -> tuple[float, float]:
        """Return the central interval with this probability, as log2 speedups."""
        return self.quantile((1.0 - level) / 2.0), self.quantile((1.0 + level) / 2.0)

    def shift(self, delta: float) -> "Distribution":
        """Return the distribution moved by `delta`: from one anchor to another, in log2."""
        if not delta:
            return self
        knots = tuple(knot + delta for knot in self.knots)
        return Distribution(knots=knots, cdf_values=self.cdf_values)

    def mirrored(self) -> "Distribution":
        """Return the distribution of the inverse speedup: that of the anchor over the candidate."""
        knots = tuple(-knot for knot in reversed(self.knots))
        return Distribution(
            knots=knots, cdf_values=tuple(1.0 - value for value in reversed(self.cdf_values))
        )

    def widen(self, factor: float) -> "Distribution":
        """Return the distribution stretched about its median by `factor` (above 1: less sure)."""
        if not factor > 0.0:
            raise ValueError(f"factor must be above 0, not {factor}")
        median = self.quantile(0.5)
        knots = tuple(median + factor * (knot - median) for knot in self.knots)
        return Distribution(knots=knots, cdf_values=self.cdf_values)

    def bin_probabilities(self, bins: Bins) -> tuple[float, ...]:
        """Return the probability of each bin; they sum to 1."""
        at_edges = (0.0, *map(self.cdf, bins.log2_edges), 1.0)
        mass = np.array([max(high - low, 0.0) for low, high in pairwise(at_edges)])
        return tuple((mass / mass.sum()).tolist())

    def expected_improvement(self, log2_threshold: float) -> float:
        """Return E[max(0, log2 speedup - log2_threshold)], exactly."""
        above = bisect_right(self.knots, log2_threshold)
        x = np.array([log2_threshold, *self.knots[above:]])
        survival = 1.0 - np.array([self.cdf(log2_threshold), *self.cdf_values[above:]])
        return float((x[1:] - x[:-1]) @ (survival[1:] + survival[:-1])) / 2.0

    def _segments(self) -> tuple[Floats, Floats, Floats]:
        knots, values = np.array(self.knots), np.array(self.cdf_values)
        low, high = knots[:-1], knots[1:]
        return values[1:] - values[:-1], (high + low) / 2.0, high - low

    @classmethod
    def _exact_ends(cls, knots: Floats, cdf_values: Floats) -> Self:
        """Build a distribution whose CDF runs from exactly 0 to exactly 1 despite rounding."""
        values = np.maximum.accumulate(np.clip(cdf_values, 0.0, 1.0))
        values[0], values[-1] = 0.0, 1.0
        return cls(knots=tuple(knots.tolist()), cdf_values=tuple(values.tolist()))


@cache
def _normal_cdf() -> Floats:
    from scipy.special import ndtr

    return np.asarray(ndtr(_NORMAL_Z), dtype=np.float64)


@lru_cache(maxsize=64)
def _quantile_grid(levels: tuple[float, ...]) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the levels, the levels with ends and the knots on the normal scale, and the CDF."""
    from scipy.special import ndtr, ndtri

    p = np.array(levels)
    if p.ndim != 1 or p.size < 2 or p[0] <= 0.0 or p[-1] >= 1.0 or np.any(np.diff(p) <= 0.0):
        raise ValueError("give at least two levels, strictly increasing between 0 and 1")
    z = ndtri(p)
    with_ends = np.concatenate(([min(-4.0, z[0] - 0.5)], z, [max(4.0, z[-1] + 0.5)]))
    # A grid point close to a level would make knots too close to tell apart.
    far = np.min(np.abs(_NORMAL_Z[:, None] - with_ends), axis=1) > 0.05
    places = np.sort(np.concatenate((with_ends, _NORMAL_Z[far])))
    return z, with_ends, places, ndtr(places)


def _normalised(parts: ArrayLike, what: str) -> Floats:
    mass = np.asarray(parts, dtype=np.float64)
    total = mass.sum()
    if mass.ndim != 1 or not np.all(mass >= 0.0) or not 0.0 < total < math.inf:
        raise ValueError(f"{what} must be a list of numbers of at least 0 with a positive sum")
    return np.asarray(mass / total, dtype=np.float64)


def _spread_apart(ordered: Floats, width: float) -> Floats:
    """Move ordered values in each row as little as needed for a distance of `width`."""
    ramp = width * np.arange(ordered.shape[-1])
    level = ordered - ramp
    pushed_up = np.maximum.accumulate(level, axis=-1)
    pushed_down = np.minimum.accumulate(level[..., ::-1], axis=-1)[..., ::-1]
    between = (pushed_up + pushed_down) / 2.0 + ramp
    return np.where(pushed_up == pushed_down, ordered, between)
