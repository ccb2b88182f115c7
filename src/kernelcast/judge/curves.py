"""Curves of the best kernel found by number of measurements, and their means."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kernelcast.events import Measured
from kernelcast.run import Run

Floats = NDArray[np.float64]


def best_so_far(run: Run) -> list[float]:
    """Return the log2 speedup of the best kernel after each measurement of the search.

    Only the second measurement of a kernel, the confirmation, counts: the first was selected for
    being high.
    """
    measured: list[str] = []
    confirmed: dict[str, float] = {}
    for event in run.events("measured"):
        assert isinstance(event, Measured)
        key = event.measurement.kernel_id
        if event.purpose == "search":
            measured.append(key)
        elif event.confirmed_log2 is not None:
            confirmed[key] = event.confirmed_log2
    bests = np.maximum.accumulate([0.0, *(confirmed.get(key, 0.0) for key in measured)])
    return [float(best) for best in bests[1:]]


def drawn_out(curves: Sequence[Sequence[float]], length: int) -> Floats:
    """Pad short curves with their last value."""
    return np.array([np.pad(curve, (0, length - len(curve)), mode="edge") for curve in curves])


def mean_interval(rows: ArrayLike, confidence: float = 0.95) -> tuple[Floats, Floats, Floats]:
    """Return the mean over rows and Student's interval, which is infinite for a single row."""
    from scipy.special import stdtrit  # takes a third of a second to import

    values = np.asarray(rows, dtype=float)
    count = len(values)
    mean = values.mean(axis=0) if count else np.full(values.shape[1:], np.nan)
    if count < 2:
        return mean, np.full_like(mean, -np.inf), np.full_like(mean, np.inf)
    errors = stdtrit(count - 1, 0.5 + confidence / 2.0) * values.std(axis=0, ddof=1) / count**0.5
    return mean, mean - errors, mean + errors
