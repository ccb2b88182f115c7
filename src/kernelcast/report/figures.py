"""Figures: what runs found by how many measurements, how arms compare, how good forecasts were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelcast.judge.curves import drawn_out, mean_interval

if TYPE_CHECKING:  # listing runs does not need it
    from kernelcast.judge.evaluation import Evaluation

_COLOURS = (
    *("#1f6feb", "#d1582b", "#2b8a3e", "#8250df", "#c2930a"),
    *("#0c8599", "#c2255c", "#74543b", "#6b7684", "#87b91f"),
)
_BEST = "best speedup over the seed kernel (measured twice)"

Curves = Mapping[str, Sequence[Sequence[float]]]
"""Curves of best so far by arm: one value per measurement, one curve per run."""


def draw_best_so_far(arms: Curves, path: Path, title: str) -> Path:
    """Draw the best speedup by measurements as PNG: runs as thin lines, means as thick ones."""
    figure, axes = _pyplot().subplots(figsize=(7.5, 4.5), dpi=120)
    for (name, curves), colour in zip(arms.items(), _COLOURS, strict=False):
        if len(curves) > 1:
            for curve in curves:
                steps = range(1, len(curve) + 1)
                axes.step(steps, 2.0 ** np.array(curve), where="mid", color=colour, alpha=0.3, lw=1)
        shortest = min(map(len, curves), default=0)
        if shortest:
            mean = np.mean([curve[:shortest] for curve in curves], axis=0)
            _band(axes, name, colour, 2.0**mean)
    _finish(axes, title, _BEST, octaves=True)
    return _saved(figure, path)


def draw_comparison(arms: Curves, against: str, path: Path, title: str) -> Path:
    """Draw the best so far of each arm, and its gain over the arm `against`, with 95% bands.

    `arms` are log2 speedups, one curve per seed, in the same order for all arms. The bands of two
    arms may overlap although their difference is sure: the gain is paired by seeds.
    """
    figure, (best, gain) = _pyplot().subplots(1, 2, figsize=(12.0, 4.5), dpi=120)
    length = max((len(curve) for curves in arms.values() for curve in curves), default=0)
    whole = {
        name: drawn_out(curves, length)
        for name, curves in arms.items()
        if curves and all(map(len, curves))
    }
    for place, (name, curves) in enumerate(whole.items()):
        panels = [(best, curves)]
        if name != against and against in whole:
            panels.append((gain, curves - whole[against]))
        for axes, rows in panels:
            mean, low, high = (2.0**log2 for log2 in mean_interval(rows))
            band = (low, high) if len(rows) > 1 else None
            _band(axes, name, _COLOURS[place % len(_COLOURS)], mean, band, alpha=0.15)
    gain.axhline(1.0, color="#999999", lw=1, ls=":")
    _finish(best, title, _BEST, octaves=True)
    _finish(gain, "in pairs, seed by seed", f"speedup over {against}")
    for axes in (best, gain):
        axes.yaxis.set_major_formatter("{x:.3g}x")
    return _saved(figure, path)


def draw_evaluations(evaluations: Sequence[Evaluation], path: Path, title: str) -> Path:
    """Draw reliability, risk by coverage, and loss by share measured, side by side, as PNG."""
    figure, (reliability, risk, regret) = _pyplot().subplots(1, 3, figsize=(13.0, 4.2), dpi=120)
    reliability.plot([0, 1], [0, 1], color="#999999", lw=1, ls=":")
    for evaluation, colour in zip(evaluations, _COLOURS, strict=False):
        claimed, came_true, counts = np.array(evaluation.reliability).T
        sizes = 15.0 + 150.0 * counts / counts.sum()
        reliability.plot(claimed, came_true, color=colour, lw=1.5, label=evaluation.forecaster)
        reliability.scatter(claimed, came_true, s=sizes, color=colour)
        kept = evaluation.risk_coverage
        risk.plot(kept.coverage, kept.risk, color=colour, lw=2)
        losses = {
            share: (loss.value, loss.low, loss.high)
            for share, loss in evaluation.regret.items()
            if np.isfinite(loss.value)
        }
        value, low, high = np.array(list(losses.values())).reshape(-1, 3).T
        regret.plot(list(losses), value, "o-", color=colour, lw=2)
        regret.fill_between(list(losses), low, high, color=colour, alpha=0.15)
    _finish(reliability, "Reliability", "share that came true", "confidence claimed")
    _finish(risk, "Risk and coverage", "mean half-Brier", "share kept, surest first")
    panel = "Measuring only the best forecasts"
    _finish(regret, panel, "loss against measuring all", "share measured")
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


def draw_found(arms: Curves, path: Path, title: str) -> Path:
    """Draw the fraction of the best recorded by measurements, mean and quartiles, as PNG."""
    figure, axes = _pyplot().subplots(figsize=(7.5, 4.5), dpi=120)
    _recorded(axes, arms, title, "best found / best recorded")
    return _saved(figure, path)


def draw_recorded_and_live(
    arms: Curves,
    live: Sequence[float],
    measured: Sequence[float | None],
    path: Path,
    titles: tuple[str, str],
) -> Path:
    """Draw replayed searches as `draw_found` does, and one live search beside them, as PNG.

    `live` is the best log2 speedup after each measurement. `measured` is the log2 speedup of each
    kernel measured, or None if it failed.
    """
    figure, (recorded, here) = _pyplot().subplots(1, 2, figsize=(12.0, 5.0), dpi=120)
    _recorded(recorded, arms, titles[0], "best kernel found: share of the best possible speed")
    timed = [(step, 2.0**log2) for step, log2 in enumerate(measured, 1) if log2 is not None]
    steps, speedups = zip(*timed, strict=True) if timed else ((), ())
    here.scatter(steps, speedups, s=18, color="#777777", label="each kernel, first measurement")
    # Before the first measurement, the seed kernel is the best.
    best = 2.0 ** np.array([0.0, *live])
    label = "best so far, second measurement"
    here.step(range(len(best)), best, where="post", color=_COLOURS[0], lw=2.5, label=label)
    _finish(here, titles[1], "speedup over the seed kernel", octaves=True)
    return _saved(figure, path)


def _recorded(axes: Any, arms: Curves, title: str, ylabel: str) -> None:
    for (name, curves), colour in zip(arms.items(), _COLOURS, strict=False):
        begun = [curve for curve in curves if curve]
        if begun:
            whole = drawn_out(begun, max(map(len, begun)))
            low, high = np.quantile(whole, [0.25, 0.75], axis=0)
            _band(axes, name, colour, whole.mean(axis=0), (low, high), alpha=0.12)
    _finish(axes, title, ylabel)


def _band(
    axes: Any, name: str, colour: str, line: Any, band: tuple[Any, Any] | None = None, **fill: Any
) -> None:
    steps = range(1, len(line) + 1)
    axes.step(steps, line, where="mid", color=colour, lw=2.5, label=name)
    if band is not None:
        axes.fill_between(steps, *band, step="mid", color=colour, **fill)


def _finish(
    axes: Any, title: str, ylabel: str, xlabel: str = "measurements", *, octaves: bool = False
) -> None:
    """Label the axes; by measurements, also with whole numbers and a legend."""
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, loc="left", fontsize=11)
    if octaves:
        _in_octaves(axes)
    if xlabel == "measurements":
        axes.xaxis.get_major_locator().set_params(integer=True)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, loc="lower right")


def _pyplot() -> Any:
    # pyplot is slow to import, and only figures need it.
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["text.parse_math"] = False  # a name such as $\nope$ is not a formula
    from matplotlib import pyplot

    return pyplot


def _in_octaves(axes: Any) -> None:
    """Scale speedups by their logarithm; within two octaves, tick more than powers of two."""
    axes.set_yscale("log", base=2)
    low, high = axes.get_ylim()
    if high < 4.0 * low:
        from matplotlib import ticker

        axes.yaxis.set_major_locator(ticker.MaxNLocator(6))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.yaxis.set_major_formatter("{x:g}x")


def _saved(figure: Any, path: Path) -> Path:
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    _pyplot().close(figure)
    return path
