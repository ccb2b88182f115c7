"""Figures: what runs found by how many measurements, and how good forecasts were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernelcast.evaluation import Evaluation
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
    pyplot = _pyplot()
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
    _plain(axes, title)
    axes.legend(frameon=False, loc="lower right")
    return _saved(figure, path)


def draw_evaluations(evaluations: Sequence[Evaluation], path: Path, title: str) -> Path:
    """Reliability, risk against coverage, and loss by share measured, side by side; a PNG."""
    figure, (reliability, risk, regret) = _pyplot().subplots(1, 3, figsize=(13.0, 4.2), dpi=120)
    reliability.plot([0, 1], [0, 1], color="#999999", lw=1, ls=":")
    for each, colour in zip(evaluations, _COLOURS, strict=False):
        claimed, came_true, counts = (
            np.array(part) for part in zip(*each.reliability, strict=True)
        )
        sizes = 15.0 + 150.0 * counts / counts.sum()
        reliability.plot(claimed, came_true, color=colour, lw=1.5, label=each.forecaster)
        reliability.scatter(claimed, came_true, s=sizes, color=colour)
        risk.plot(each.risk_coverage.coverage, each.risk_coverage.risk, color=colour, lw=2)
        shares = [share for share, loss in each.regret.items() if np.isfinite(loss.value)]
        losses = [each.regret[share] for share in shares]
        regret.plot(shares, [loss.value for loss in losses], "o-", color=colour, lw=2)
        regret.fill_between(
            shares,
            [loss.low for loss in losses],
            [loss.high for loss in losses],
            color=colour,
            alpha=0.15,
        )
    for axes, panel, across, up in (
        (reliability, "Reliability", "confidence claimed", "share that came true"),
        (risk, "Risk and coverage", "share kept, surest first", "mean half-Brier"),
        (
            regret,
            "Measuring only the best forecasts",
            "share measured",
            "loss against measuring all",
        ),
    ):
        _plain(axes, panel)
        axes.set_xlabel(across)
        axes.set_ylabel(up)
    regret.yaxis.set_major_formatter("{x:.0%}")
    if any(len(line.get_xdata()) for line in regret.lines):
        regret.set_xscale("log")
        regret.xaxis.set_major_formatter("{x:.0%}")
    else:
        why = "needs pools of one anchor:\n--anchor reference"
        middle = {"ha": "center", "va": "center", "transform": regret.transAxes}
        regret.text(0.5, 0.5, why, color="#666666", **middle)
    reliability.legend(frameon=False, loc="upper left", fontsize=9)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return _saved(figure, path)


def draw_found(arms: Mapping[str, Sequence[Sequence[float]]], path: Path, title: str) -> Path:
    """Fraction of the best recorded against measurements: mean and quartiles of each arm; a PNG."""
    figure, axes = _pyplot().subplots(figsize=(7.5, 4.5), dpi=120)
    for (name, curves), colour in zip(arms.items(), _COLOURS, strict=False):
        length = max(map(len, curves), default=0)
        # A run that ended early has found what it has found.
        whole = np.array(
            [[*curve, *[curve[-1]] * (length - len(curve))] for curve in curves if curve]
        )
        if not whole.size:
            continue
        steps = range(1, length + 1)
        low, high = np.quantile(whole, [0.25, 0.75], axis=0)
        axes.step(steps, whole.mean(axis=0), where="post", color=colour, lw=2.5, label=name)
        axes.fill_between(steps, low, high, step="post", color=colour, alpha=0.12)
    axes.set_xlabel("measurements")
    axes.set_ylabel("best found / best recorded")
    _plain(axes, title)
    axes.legend(frameon=False, loc="lower right")
    return _saved(figure, path)


def _pyplot() -> Any:
    # pyplot is slow to import, and only what draws needs it.
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _plain(axes: Any, title: str) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, loc="left", fontsize=11)


def _saved(figure: Any, path: Path) -> Path:
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    _pyplot().close(figure)
    return path
