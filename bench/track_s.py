"""Recorded searches with fewer measurements, and pools of which one kernel is measured.

The 439 searches of llm_sol_mi350x are replayed in order, each from its start. Repeats of a kernel
and kernels without a published text are left out. A kernel is measured if P(it runs) times its
expected gain of more than 2% over the best measured so far, times a power of the number of kernels
seen, reaches a threshold; only what is measured is learnt. The power is there because an early gain
is soon overtaken by later ones, and a late one is not. Models come from the other folds' problems,
and so do each fold's power and threshold: those that save most there while at least `target` of the
searches end within 2% of their full best. Beside it: only the first n kernels of each search (n
chosen alike), and leaving out at random.

    python bench/track_s.py [--quick] [--seed 0] [--out bench/results/track_s.json]
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from _result import bench_parser, report, save_figure
from _written import folds_of, pool_tops, searched_rows
from kernelcast.dataset import Trial, recorded_trials
from kernelcast.forecasters._source import SourceForecaster, SourceModel
from kernelcast.judge.evaluation import Answer
from kernelcast.types import Observation
from measure import add_bars

_LOSS_LOG2 = math.log2(1.02)
_USUAL = (0.048, 0.065, 0.085, 0.106, 0.139, 0.185)
_SETTINGS = (
    *((0.0, each) for each in (0.012, 0.017, 0.023, 0.033)),
    *((0.5, each) for each in (*_USUAL, 0.24, 0.32, 0.45, 0.65, 1.0)),
    *((1.0, each) for each in (0.158, 0.206, 0.26, 0.29, 0.324, 0.358, 0.398, 0.483, 0.617, 0.8)),
)
"""Powers and thresholds from which each fold's are chosen."""
_FIRST = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32, 40)
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


@dataclass(frozen=True)
class End:
    """How one search ended under one setting."""

    fold: int
    distinct: int
    measured: int
    loss_log2: float


Setting = tuple[float, ...]
Arm = dict[Setting, list[End]]


def main() -> None:
    parser = bench_parser(__doc__, quick="a few problems, two folds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, default=0.955, help="searches within 2%% elsewhere")
    options = parser.parse_args()
    began = time.monotonic()
    folds, problems = (2, 12) if options.quick else (5, None)
    settings = _SETTINGS[3::5] if options.quick else _SETTINGS
    rng = np.random.default_rng(options.seed)
    arms: dict[str, Arm] = {name: defaultdict(list) for name in ("forecast", "first", "random")}
    pooled: list[Answer] = []
    best: dict[str, float] = {}
    rows = searched_rows(problems)
    for row in rows.select(["problem", "log2_speedup"]).to_pylist():
        speed = -math.inf if row["log2_speedup"] is None else row["log2_speedup"]
        best[row["problem"]] = max(best.get(row["problem"], -math.inf), speed)
    for fold in folds_of(rows, folds, options.seed):
        pooled += fold.pooled()
        for search in recorded_trials(fold.test):
            trials = [trial for trial in search.trials if trial.observation is not None]
            start = search.trials[0].news[0]
            for power, threshold in settings:
                measured = _replayed(fold.model, start, trials, power, threshold)
                arms["forecast"][power, threshold].append(_end(fold.number, trials, measured))
            for first in _FIRST:
                arms["first"][float(first),].append(_end(fold.number, trials, trials[:first]))
            for share in _SHARES:
                kept = rng.random(len(trials)) >= share
                measured = list(compress(trials, kept))
                arms["random"][share,].append(_end(fold.number, trials, measured))
    chosen = {name: _chosen_elsewhere(arm, options.target) for name, arm in arms.items()}
    pools = pool_tops(pooled, best)
    ours = chosen["forecast"]
    figures = {"saved": ours["saved"], "within": ours["within"], "pool_top": pools["top"]}
    result: dict[str, Any] = {
        "figures": {name: {"value": value} for name, value in figures.items()},
        "chosen_elsewhere": chosen,
        "curve": {
            name: [
                {**_summary(ends), "setting": list(setting)}
                for setting, ends in sorted(arm.items())
            ]
            for name, arm in arms.items()
        },
        "oracle_saved": _oracle(arms["first"]),
        "pools": pools,
        "searches": len(arms["random"][_SHARES[0],]),
        "target_elsewhere": options.target,
        "folds": folds,
        "seed": options.seed,
        "seconds": round(time.monotonic() - began, 1),
    }
    add_bars("track_s", result)
    if options.out:
        _draw(result["curve"], ours, options.out)
    report(result, options)


# ---------------------------------------------------------------------------------------- arms


def _replayed(
    model: SourceModel,
    start: Observation,
    trials: Sequence[Trial],
    power: float,
    threshold: float,
) -> list[Trial]:
    """The kernels of one search that are measured; the start always is."""
    forecaster = SourceForecaster(model)
    forecaster.learn([start])
    best, measured = start, []
    for seen, trial in enumerate(trials, start=1):
        timing = best.measurement.timing
        assert timing is not None
        assert trial.observation is not None
        anchored = {
            "anchor": best.kernel,
            "anchor_log2_speedup": timing.log2_speedup,
            "anchor_runtime_s": timing.runtime_s,
        }
        (forecast,) = forecaster.forecast([trial.query.model_copy(update=anchored)])
        if forecast.gain(timing.log2_speedup + _LOSS_LOG2) * seen**power < threshold:
            continue
        measured.append(trial)
        forecaster.learn([trial.observation])
        speed = trial.log2_over_reference
        if speed is not None and speed > timing.log2_speedup:
            best = trial.observation
    return measured


def _end(fold: int, trials: Sequence[Trial], measured: Sequence[Trial]) -> End:
    return End(fold, len(trials), len(measured), _best(trials) - _best(measured))


def _best(trials: Iterable[Trial]) -> float:
    """Of the kernels and the start, log2 against the start."""
    return max([0.0, *(trial.log2_over_reference or 0.0 for trial in trials)])


# ------------------------------------------------------------------------------------- summaries


def _summary(ends: Sequence[End]) -> dict[str, float]:
    """Share of distinct kernels that are not measured, and of searches that lost nothing."""
    loss = np.array([end.loss_log2 for end in ends])
    distinct = sum(end.distinct for end in ends)
    return {
        "saved": round(1.0 - sum(end.measured for end in ends) / max(distinct, 1), 4),
        "within": round(float(np.mean(loss <= _LOSS_LOG2)), 4),
        "mean_fraction": round(float(np.mean(np.exp2(-loss))), 4),
    }


def _chosen_elsewhere(arm: Arm, target: float) -> dict[str, Any]:
    """Each fold under the setting that saves most on the other folds within the target."""
    ends: list[End] = []
    settings: list[Setting] = []
    for fold in sorted({end.fold for each in arm.values() for end in each}):
        others = {
            setting: _summary([end for end in each if end.fold != fold])
            for setting, each in arm.items()
        }
        safe = {s: each for s, each in others.items() if each["within"] >= target}
        pool = safe or {max(others, key=lambda s: others[s]["within"]): {"saved": 0.0}}
        setting = max(pool, key=lambda s: pool[s]["saved"])
        settings.append(setting)
        ends += [end for end in arm[setting] if end.fold == fold]
    return {**_summary(ends), "settings": settings}


def _oracle(first: Arm) -> float:
    """Saved by one who measures a single kernel of each search, the best."""
    ends = first[float(_FIRST[0]),]
    distinct = sum(end.distinct for end in ends)
    needed = sum(end.distinct > 0 for end in ends)
    return round(1.0 - needed / max(distinct, 1), 4)


def _draw(curves: dict[str, list[dict[str, Any]]], ours: dict[str, Any], out: Path) -> None:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, 2)
    for name, colour in (("forecast", "tab:blue"), ("first", "tab:orange"), ("random", "0.6")):
        points = [
            point for point in curves[name] if name != "forecast" or point["setting"][0] == 0.5
        ]
        points.sort(key=lambda point: point["saved"])
        saved = [point["saved"] for point in points]
        for axis, what in zip(axes, ("within", "mean_fraction"), strict=True):
            axis.plot(
                saved, [point[what] for point in points], marker=".", color=colour, label=name
            )
    axes[0].plot([ours["saved"]], [ours["within"]], marker="*", markersize=13, color="tab:blue")
    axes[0].set(xlabel="distinct kernels not measured", ylabel="searches within 2%", xlim=(0, 0.85))
    axes[1].set(xlabel="distinct kernels not measured", ylabel="mean of the best", xlim=(0, 0.85))
    axes[1].legend(frameon=False)
    save_figure(figure, out)


if __name__ == "__main__":
    main()
