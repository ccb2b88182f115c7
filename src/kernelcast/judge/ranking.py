"""A pool of kernels in the order in which they deserve a measurement, and where to cut it.

Belongs here: from forecasts of a whole pool to an order, each kernel's chance to be the fastest,
and how many to measure. How forecasts come about and how kernels are measured does not.
"""

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
    """A kernel of the pool. `chance` is that of being the fastest; those of a pool sum to 1."""

    label: str
    kernel: Kernel
    forecast: Forecast
    chance: float

    @property
    def is_ruled_out(self) -> bool:
        """Whether it is certain that measuring it would be a waste."""
        return _is_ruled_out(self.forecast)


@dataclass(frozen=True)
class Cut:
    """How many of the first are to be measured, and why."""

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
        """Order a pool by each kernel's chance to be its fastest.

        Exactly, that chance would need every forecast's joint distribution. Used is the speed that
        one kernel of the pool is expected to exceed; a kernel's chance is its own to exceed it.
        """
        if not kernels:
            return cls(())
        chances = _chances(forecasts)
        # Deep in the list the chances underflow: there the forecast's own centre decides.
        promising, centres = np.array([_promise(each) for each in forecasts]).T
        order = np.lexsort((-centres, -chances, -promising))
        return cls(
            tuple(
                Ranked(labels[at], kernels[at], forecasts[at], float(chances[at])) for at in order
            )
        )

    def cut(self, *, share: float | None = None, miss: float | None = None) -> Cut:
        """The first `share` of the pool, or so many that the fastest is missed with P <= `miss`.

        The latter takes the forecasts at their word: it holds as far as they are calibrated. What
        is ruled out is not counted.
        """
        if (share is None) == (miss is None):
            raise SetupError("state either a share of the pool or a chance to miss its fastest")
        total = len(self.members)
        contenders = sum(not member.is_ruled_out for member in self.members)
        running = np.cumsum([each.chance for each in self.members])
        if share is not None:
            if not 0.0 < share <= 1.0:
                raise SetupError("a share lies above 0 and is at most 1")
            count = min(math.ceil(share * total), contenders)
            reason = f"{share:.3g} of {total}"
        else:
            assert miss is not None
            if not 0.0 < miss < 1.0:
                raise SetupError("a chance to miss the fastest lies between 0 and 1")
            count = min(contenders, int(np.searchsorted(running, 1.0 - miss)) + 1)
            reason = f"the fewest that leave the fastest out with a chance of at most {miss:.3g}"
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


def _promise(forecast: Forecast) -> tuple[bool, float]:
    """The order of what cannot be told apart by its chance: larger is better."""
    fast = forecast.against_reference().quantile(0.9)
    return not _is_ruled_out(forecast), fast + math.log2(max(forecast.p_ok, 1e-12))


def _chances(forecasts: Sequence[Forecast]) -> Floats:
    densities = [each.against_reference() for each in forecasts]
    p_ok = np.array([0.0 if _is_ruled_out(each) else each.p_ok for each in forecasts])
    if p_ok.sum() <= 1.0:
        # Not one kernel is expected to run: what runs at all is the fastest.
        return np.asarray(p_ok / max(p_ok.sum(), 1e-300))

    def above(speeds: Floats) -> Floats:
        return p_ok[:, None] * np.stack([1.0 - density.cdf(speeds) for density in densities])

    low = min(density.knots[0] for density in densities)
    high = max(density.knots[-1] for density in densities)
    for _ in range(_REFINEMENTS):
        speeds = np.linspace(low, high, _GRID)
        expected = above(speeds).sum(axis=0)
        at = int(np.flatnonzero(expected > 1.0)[-1])
        low, high = speeds[at], speeds[min(at + 1, _GRID - 1)]
    found = above(np.array([low]))[:, 0]
    return np.asarray(found / found.sum())
