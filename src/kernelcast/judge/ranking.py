"""Order a pool of kernels by what measuring them promises, and say how many to measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelcast.errors import SetupError
from kernelcast.types import Forecast, Kernel

_GRID = 65
_REFINEMENTS = 5

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
        level, chances = _chances(forecasts)
        gains = np.array([forecast.gain(level) for forecast in forecasts])
        # The gains of the last kernels underflow: the forecasts themselves order them.
        ruled_out = np.array([_is_ruled_out(forecast) for forecast in forecasts])
        promise = [
            forecast.against_reference().quantile(0.9) + math.log2(max(forecast.p_ok, 1e-12))
            for forecast in forecasts
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


def _chances(forecasts: Sequence[Forecast]) -> tuple[float, Floats]:
    """Return the level that one kernel is expected to exceed, and each one's chance to do so."""
    densities = [forecast.against_reference() for forecast in forecasts]
    p_ok = np.array([0.0 if _is_ruled_out(one) else one.p_ok for one in forecasts])
    low = min(density.knots[0] for density in densities)
    high = max(density.knots[-1] for density in densities)
    if p_ok.sum() <= 1.0:
        # At most one kernel is expected to run: a kernel that runs at all is the fastest.
        return low, np.asarray(p_ok / max(p_ok.sum(), 1e-300))

    def above(speeds: Floats) -> Floats:
        return p_ok[:, None] * np.stack([1.0 - density.cdf(speeds) for density in densities])

    for _ in range(_REFINEMENTS):
        speeds = np.linspace(low, high, _GRID)
        at = int(np.flatnonzero(above(speeds).sum(axis=0) > 1.0)[-1])
        low, high = speeds[at], speeds[min(at + 1, _GRID - 1)]
    chances = above(np.array([low]))[:, 0]
    return float(low), np.asarray(chances / chances.sum())
