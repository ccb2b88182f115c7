"""Curves of best so far, as numbers: what runs found by how many measurements, and their means."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from kernelcast.events import Measured
from kernelcast.store import Run


def best_so_far(run: Run) -> list[float]:
    """Log2 speedup of the best kernel after each measurement of the search.

    A kernel counts with its confirmation, the second measurement; the first was picked for being
    high. One that was never confirmed never was the best.
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
    curve: list[float] = []
    best = 0.0
    for key in measured:
        best = max(best, confirmed.get(key, 0.0))
        curve.append(best)
    return curve


def drawn_out(curves: Sequence[Sequence[float]], length: int) -> NDArray[np.float64]:
    """Curves of best so far, all of one length: who ended early has found what they have found."""
    return np.array([np.pad(curve, (0, length - len(curve)), mode="edge") for curve in curves])


def mean_interval(
    rows: ArrayLike, confidence: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The mean over rows with Student's interval; of a single row, the interval is everything."""
    values = np.asarray(rows, dtype=float)
    count = len(values)
    mean = values.mean(axis=0) if count else np.full(values.shape[1:], np.nan)
    if count < 2:
        return mean, np.full_like(mean, -np.inf), np.full_like(mean, np.inf)
    errors = stdtrit(count - 1, 0.5 + confidence / 2.0) * values.std(axis=0, ddof=1) / count**0.5
    return mean, mean - errors, mean + errors
