"""Order a pool of kernels by what measuring them promises, and say how many to measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelcast.distribution import Distribution
from kernelcast.errors import SetupError
from kernelcast.types import Forecast, Kernel

_HALVINGS = 40

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Ranked:
    """A kernel of the pool.

    `gain` is its score, by which a pool is ordered. `chance` is its chance to be the fastest; the
    chances sum to 1.
    """

    label: str
    kernel: Kernel
    forecast: Forecast
    gain: float
    chance: float

    @property
    def is_ruled_out(self) -> bool:
        """True if a measurement would certainly be wasted."""
        return _is_ruled_out(self.forecast)


@dataclass(frozen=True)
class Cut:
    """How many of the first kernels to measure, their chance to hold the fastest, and why."""

    count: int
    chance: float
    reason: str


@dataclass(frozen=True)
class Ranking:
    """A pool, best first."""

    members: Sequence[Ranked]

    @classmethod
    def of(
        cls, labels: Sequence[str], kernels: Sequence[Kernel], forecasts: Sequence[Forecast]
    ) -> Ranking:
        """Order a pool by each kernel's expected gain over the level of its best.

        The level is the speed that one kernel of the pool is expected to exceed. The chance to be
        the fastest is in proportion to the probability to exceed it; the exact chance would need
        the joint distribution of all forecasts.
        """
        if not kernels:
            return cls(())
        densities = [forecast.against_reference() for forecast in forecasts]
        stack = _Stack(densities)
        p_ok = np.array([forecast.p_ok for forecast in forecasts])
        ruled_out = np.array([_is_ruled_out(forecast) for forecast in forecasts])
        level, chances = _chances(stack, np.where(ruled_out, 0.0, p_ok))
        gains = p_ok * stack.expected_improvement(level)  # `Forecast.gain`, of all at once
        # The gains of the last kernels underflow: the forecasts themselves order them.
        promise = [
            density.quantile(0.9) + math.log2(max(chance, 1e-12))
            for density, chance in zip(densities, p_ok.tolist(), strict=True)
        ]
        order = np.lexsort((-np.array(promise), -gains, ruled_out)).tolist()
        return cls(
            tuple(
                Ranked(labels[at], kernels[at], forecasts[at], float(gains[at]), float(chances[at]))
                for at in order
            )
        )

    def cut(self, *, share: float | None = None, miss: float | None = None) -> Cut:
        """Say how many to measure; kernels that are ruled out do not count.

        Args:
            share: Share of the pool to measure.
            miss: In place of `share`: largest chance to leave out the fastest. It holds as far as
                the forecasts are calibrated.

        Raises:
            SetupError: None or both are stated, or one is out of its range.
        """
        contenders = sum(not member.is_ruled_out for member in self.members)
        running = np.cumsum([member.chance for member in self.members])
        if share is not None and miss is None:
            if not 0.0 < share <= 1.0:
                raise SetupError("a share lies above 0 and is at most 1")
            wanted = math.ceil(share * len(self.members))
            reason = f"{share:.3g} of {len(self.members)}"
        elif miss is not None and share is None:
            if not 0.0 < miss < 1.0:
                raise SetupError("a chance to miss the fastest lies between 0 and 1")
            wanted = int(np.searchsorted(running, 1.0 - miss)) + 1
            reason = f"the fewest that leave the fastest out with a chance of at most {miss:.3g}"
        else:
            raise SetupError("state either a share of the pool or a chance to miss its fastest")
        count = min(wanted, contenders)
        if not count:
            return Cut(count=0, chance=0.0, reason="none of them is worth a measurement")
        chance = float(running[count - 1])
        return Cut(
            count=count,
            chance=chance,
            reason=f"{reason}; by the forecasts the fastest is among them with P {chance:.3f}",
        )


def _is_ruled_out(forecast: Forecast) -> bool:
    return not forecast.p_ok or bool(forecast.objection)


def _chances(stack: _Stack, p_ok: Floats) -> tuple[float, Floats]:
    """Return the level that one kernel is expected to exceed, and each one's chance to do so."""
    low, high = stack.ends
    if p_ok.sum() <= 1.0:
        # At most one kernel is expected to run: a kernel that runs at all is the fastest.
        return low, np.asarray(p_ok / max(p_ok.sum(), 1e-300))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        if (p_ok @ stack.survival(middle)) > 1.0:
            low = middle
        else:
            high = middle
    chances = p_ok * stack.survival(low)
    return low, np.asarray(chances / chances.sum())


class _Stack:
    """Many distributions as one array: a row of knots each, the last knot repeated."""

    def __init__(self, densities: Sequence[Distribution]) -> None:
        length = max(len(density.knots) for density in densities)

        def padded(values: tuple[float, ...]) -> tuple[float, ...]:
            return values + values[-1:] * (length - len(values))

        self._knots = np.array([padded(density.knots) for density in densities])
        self._above = 1.0 - np.array([padded(density.cdf_values) for density in densities])

    @property
    def ends(self) -> tuple[float, float]:
        """The first knot and the last one of all."""
        return float(self._knots[:, 0].min()), float(self._knots[:, -1].max())

    def survival(self, log2_x: float) -> Floats:
        """Return P(log2 speedup > log2_x) of each."""
        right = (self._knots <= log2_x).sum(axis=1)
        last = self._knots.shape[1] - 1
        rows, left, right = np.arange(len(right)), np.maximum(right - 1, 0), np.minimum(right, last)
        width = self._knots[rows, right] - self._knots[rows, left]
        part = np.clip((log2_x - self._knots[rows, left]) / np.where(width > 0, width, 1.0), 0, 1)
        below, above = self._above[rows, left], self._above[rows, right]
        return np.asarray(below + np.where(width > 0, part, 0.0) * (above - below))

    def expected_improvement(self, log2_x: float) -> Floats:
        """Return E[max(0, log2 speedup - log2_x)] of each, as `Distribution` does."""
        edges = np.maximum(self._knots, log2_x)
        at_edges = np.where(self._knots <= log2_x, self.survival(log2_x)[:, None], self._above)
        areas = np.diff(edges) * (at_edges[:, 1:] + at_edges[:, :-1]) / 2.0
        return np.asarray(areas.sum(axis=1) + np.maximum(self._knots[:, 0] - log2_x, 0.0))
