"""Figures: what runs found by how many measurements, how arms compare, how good forecasts were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelcast.judge.curves import drawn_out, mean_interval

if TYPE_CHECKING:  # commands that list runs do not wait for it
    from kernelcast.judge.evaluation import Evaluation

_COLOURS = ("#1f6feb", "#d1582b", "#2b8a3e", "#8250df")


def draw_best_so_far(arms: Mapping[str, Sequence[Sequence[float]]], path: Path, title: str) -> Path:
    """Best speedup against measurements, one colour an arm, thin lines its runs; a PNG."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(7.5, 4.5), dpi=120)
    for (name, curves), colour in zip(arms.items(), _COLOURS, strict=False):
        speedups = [2.0 ** np.array(curve) for curve in curves]
        for speedup in speedups:
            if len(speedups) > 1:
                axes.step(
                    range(1, len(speedup) + 1), speedup, where="mid", color=colour, alpha=0.3, lw=1
                )
        shortest = min(map(len, speedups), default=0)
        if shortest:
            logs = np.log2(np.stack([speedup[:shortest] for speedup in speedups]))
            mean = 2.0 ** logs.mean(axis=0)
            axes.step(range(1, shortest + 1), mean, where="mid", color=colour, lw=2.5, label=name)
    axes.set_xlabel("measurements")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel("best speedup over the seed kernel (measured twice)")
    _in_octaves(axes)
    _plain(axes, title)
    axes.legend(frameon=False, loc="lower right")
    return _saved(figure, path)


def draw_comparison(
    arms: Mapping[str, Sequence[Sequence[float]]], against: str, path: Path, title: str
) -> Path:
    """Best so far of each arm, and what it has over the arm `against`, with 95% bands; a PNG.

    `arms` are log2 speedups by measurements, one curve a seed, in the same order for all arms. The
    bands of two arms may overlap and their difference still be sure: seeds are compared in pairs.
    """
    figure, (found, gained) = _pyplot().subplots(1, 2, figsize=(12.0, 4.5), dpi=120)
    length = max((len(curve) for curves in arms.values() for curve in curves), default=0)
    steps = np.arange(1, length + 1)
    whole = {
        name: drawn_out(curves, length)
        for name, curves in arms.items()
        if curves and all(map(len, curves))
    }
    for place, (name, curves) in enumerate(whole.items()):
        colour = _COLOURS[place % len(_COLOURS)]
        panels = [(found, curves)]
        if name != against and against in whole:
            panels.append((gained, curves - whole[against]))
        for axes, rows in panels:
            mean, low, high = (2.0**each for each in mean_interval(rows))
            axes.step(steps, mean, where="mid", color=colour, lw=2.5, label=name)
            if len(rows) > 1:
                axes.fill_between(steps, low, high, step="mid", color=colour, alpha=0.15)
    gained.axhline(1.0, color="#999999", lw=1, ls=":")
    _plain(found, title)
    _plain(gained, "in pairs, seed by seed")
    found.set_ylabel("best speedup over the seed kernel (measured twice)")
    gained.set_ylabel(f"speedup over {against}")
    _in_octaves(found)
    for axes in (found, gained):
        axes.set_xlabel("measurements")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.yaxis.set_major_formatter("{x:.3g}x")
        if axes.get_legend_handles_labels()[0]:
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
    _found_panel(axes, arms, title)
    return _saved(figure, path)


def draw_recorded_and_live(
    arms: Mapping[str, Sequence[Sequence[float]]],
    live: Sequence[float],
    measured: Sequence[float | None],
    path: Path,
    titles: tuple[str, str],
) -> Path:
    """Replayed searches as in `draw_found`, and beside them one live search; a PNG.

    `live` is the best log2 speedup after each measurement, `measured` that of each kernel measured,
    None where it failed.
    """
    figure, (recorded, here) = _pyplot().subplots(1, 2, figsize=(12.0, 5.0), dpi=120)
    _found_panel(recorded, arms, titles[0])
    recorded.set_ylabel("best kernel found: share of the best possible speed")
    steps = np.arange(1, len(live) + 1)
    timed = [(step, log2) for step, log2 in zip(steps, measured, strict=True) if log2 is not None]
    here.scatter(
        [step for step, _ in timed],
        [2.0**log2 for _, log2 in timed],
        s=18,
        color="#777777",
        label="each kernel, first measurement",
    )
    # The seed kernel is what there is before the first measurement.
    best = 2.0 ** np.array([0.0, *live])
    label = "best so far, second measurement"
    here.step([0, *steps], best, where="post", color=_COLOURS[0], lw=2.5, label=label)
    here.set_xlabel("measurements")
    here.xaxis.get_major_locator().set_params(integer=True)
    here.set_ylabel("speedup over the seed kernel")
    _in_octaves(here)
    _plain(here, titles[1])
    here.legend(frameon=False, loc="lower right")
    return _saved(figure, path)


def _found_panel(axes: Any, arms: Mapping[str, Sequence[Sequence[float]]], title: str) -> None:
    for (name, curves), colour in zip(arms.items(), _COLOURS, strict=False):
        begun = [curve for curve in curves if curve]
        if not begun:
            continue
        whole = drawn_out(begun, max(map(len, begun)))
        steps = range(1, whole.shape[1] + 1)
        low, high = np.quantile(whole, [0.25, 0.75], axis=0)
        axes.step(steps, whole.mean(axis=0), where="mid", color=colour, lw=2.5, label=name)
        axes.fill_between(steps, low, high, step="mid", color=colour, alpha=0.12)
    axes.set_xlabel("measurements")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel("best found / best recorded")
    _plain(axes, title)
    axes.legend(frameon=False, loc="lower right")


def _pyplot() -> Any:
    # pyplot is slow to import, and only what draws needs it.
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["text.parse_math"] = False  # names of problems and runs are no formulas
    from matplotlib import pyplot

    return pyplot


def _in_octaves(axes: Any) -> None:
    """Speedups by their logarithm; within two octaves, powers of two would be too few ticks."""
    axes.set_yscale("log", base=2)
    low, high = axes.get_ylim()
    if high < 4.0 * low:
        from matplotlib import ticker

        axes.yaxis.set_major_locator(ticker.MaxNLocator(6))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.yaxis.set_major_formatter("{x:g}x")


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
