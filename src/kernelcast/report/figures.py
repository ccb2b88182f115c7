"""Figures of runs: what was found, by how many measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from kernelcast.events import Measured
from kernelcast.store import Run

_COLOURS = ("#1f6feb", "#d1582b", "#2b8a3e", "#8250df")


def best_so_far(run: Run) -> list[float]:
    """Log2 speedup of the best kernel after each measurement of the search.

    A kernel counts with its confirmation, the second measurement; the first was picked for being
    high. One that was never confirmed never was the best.
    """
    measured: list[str] = []
    confirmed: dict[str, float] = {}
    for event in run.events("measured"):
        assert isinstance(event, Measured)
        measurement = event.measurement
        if event.purpose == "search":
            measured.append(measurement.kernel_id)
        elif event.purpose == "confirmation" and measurement.log2_speedup is not None:
            confirmed[measurement.kernel_id] = measurement.log2_speedup
    curve: list[float] = []
    best = 0.0
    for key in measured:
        best = max(best, confirmed.get(key, 0.0))
        curve.append(best)
    return curve


def draw_best_so_far(arms: Mapping[str, Sequence[Sequence[float]]], path: Path, title: str) -> Path:
    """Best speedup against measurements, one colour an arm, thin lines its runs; a PNG."""
    # pyplot is slow to import and this is the only place that draws.
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 4.5), dpi=120)
    for (name, curves), colour in zip(arms.items(), _COLOURS, strict=False):
        speedups = [2.0 ** np.array(curve) for curve in curves]
        for speedup in speedups:
            if len(speedups) > 1:
                axes.step(
                    range(1, len(speedup) + 1), speedup, where="post", color=colour, alpha=0.3, lw=1
                )
        shortest = min(map(len, speedups), default=0)
        if shortest:
            logs = np.log2(np.stack([speedup[:shortest] for speedup in speedups]))
            mean = 2.0 ** logs.mean(axis=0)
            axes.step(range(1, shortest + 1), mean, where="post", color=colour, lw=2.5, label=name)
    axes.set_xlabel("measurements")
    axes.set_ylabel("best speedup over the seed kernel (measured twice)")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}x")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, loc="left", fontsize=11)
    axes.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)
    return path
