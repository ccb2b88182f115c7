"""Recorded searches with fewer measurements, and pools of which one kernel is measured.

The 439 searches of llm_sol_mi350x are replayed in order. Exact repeats of a text are never measured
again. Of the distinct ones, a kernel is measured if P(it runs) times its expected gain of more than
2% over the best measured so far, times a power of the number of kernels seen, reaches a threshold;
only what is measured is learnt. The power is there because an early gain is soon overtaken by later
ones, and a late one is not. Models come from the other folds' problems, and so do each fold's power
and threshold: those that save most there while at least `target` of the searches end within 2% of
their full best. Beside it: only the first n texts of each search (n chosen alike), and leaving out
at random.

    python bench/track_s.py [--quick] [--seed 0] [--out bench/results/track_s.json]
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from _result import bench_parser, report, save_figure
from _written import searched_rows
from kernelcast.dataset import split_by
from kernelcast.forecasters._source import SourceForecaster, SourceModel
from kernelcast.training._lessons import Anchor, Episode, Step, episodes
from kernelcast.training._trials import Trial, forecast_pools
from kernelcast.training.trees import train_source_model
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
    arguments = parser.parse_args()
    began = time.monotonic()
    folds, problems = (2, 12) if arguments.quick else (5, None)
    settings = _SETTINGS[3::5] if arguments.quick else _SETTINGS
    rng = np.random.default_rng(arguments.seed)
    arms: dict[str, Arm] = {name: defaultdict(list) for name in ("forecast", "first", "random")}
    pooled: list[Trial] = []
    best: dict[str, float] = {}
    rows = searched_rows(problems)
    for fold, split in enumerate(split_by(rows, "problem", folds=folds, seed=arguments.seed)):
        model = train_source_model(split.train, arguments.seed)
        recorded = episodes(split.test, arguments.seed)
        told = split.test.select(["source", "model"]).to_pylist()
        pooled += forecast_pools(fold, model, recorded, told)
        for episode in recorded:
            name = episode.problem.name
            best[name] = max(best.get(name, -math.inf), _best(episode.steps))
        for episode in recorded:
            for power, threshold in settings:
                measured = _replayed(model, episode, power, threshold)
                arms["forecast"][power, threshold].append(_end(fold, episode, measured))
            for first in _FIRST:
                wanted = [place <= first for place in range(len(episode.steps))]
                arms["first"][float(first),].append(_end(fold, episode, _chosen(episode, wanted)))
            for share in _SHARES:
                wanted = (rng.random(len(episode.steps)) >= share).tolist()
                arms["random"][share,].append(_end(fold, episode, _chosen(episode, wanted)))
        print(f"fold {fold}: {time.monotonic() - began:.0f} s", flush=True)
    chosen = {name: _chosen_elsewhere(arm, arguments.target) for name, arm in arms.items()}
    pools = _pools(pooled, best)
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
        "target_elsewhere": arguments.target,
        "folds": folds,
        "seed": arguments.seed,
        "seconds": round(time.monotonic() - began, 1),
    }
    add_bars("track_s", result)
    if arguments.out:
        _draw(result["curve"], ours, arguments.out)
    report(result, arguments)


# ---------------------------------------------------------------------------------------- arms


def _replayed(model: SourceModel, episode: Episode, power: float, threshold: float) -> list[Step]:
    """What is measured of one search; the first kernel that runs always is."""
    forecaster = SourceForecaster(model)
    anchor: Anchor | None = None
    measured = []
    fresh = [step for step in episode.steps if step.fresh and step.measurement is not None]
    for seen, step in enumerate(fresh):
        assert step.measurement is not None
        if anchor is not None:
            (forecast,) = forecaster.forecast([anchor.query(episode, step.kernel)])
            gain = forecast.p_ok * forecast.distribution.expected_improvement(_LOSS_LOG2)
            if gain * seen**power < threshold:
                continue
        measured.append(step)
        forecaster.learn([Observation(kernel=step.kernel, measurement=step.measurement)])
        timing = step.measurement.timing
        if timing and (anchor is None or timing.log2_speedup > anchor.log2_speedup):
            anchor = Anchor(step.kernel, timing.log2_speedup, timing.runtime_s)
    return measured


def _chosen(episode: Episode, wanted: Sequence[bool]) -> list[Step]:
    """The start, and those of the distinct kernels behind it whose place is wanted."""
    fresh = [step for step in episode.steps if step.fresh and step.measurement is not None]
    return [step for place, step in enumerate(fresh) if place == 0 or wanted[place]]


def _end(fold: int, episode: Episode, measured: Sequence[Step]) -> End:
    fresh = [step for step in episode.steps if step.fresh and step.measurement is not None]
    best, found = _best(fresh), _best(measured)
    loss = 0.0 if best == -math.inf else best - found
    return End(fold, max(len(fresh) - 1, 0), max(len(measured) - 1, 0), loss)


def _best(steps: Sequence[Step]) -> float:
    times = [s.measurement.log2_speedup for s in steps if s.measurement is not None]
    return max((each for each in times if each is not None), default=-math.inf)


# ------------------------------------------------------------------------------------- summaries


def _summary(ends: Sequence[End]) -> dict[str, float]:
    """Share of distinct kernels (the start apart) saved, and of searches that lost nothing."""
    loss = np.array([min(end.loss_log2, 10.0) for end in ends])
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


def _pools(pooled: Sequence[Trial], best: Mapping[str, float]) -> dict[str, float]:
    """Of each problem's texts, what the one top-ranked reaches of the best measured kernel.

    The best may be one whose text was not published, which nobody could have picked. Among texts
    that ran, and among all, where a failed kernel reaches nothing.
    """
    pools: defaultdict[str, list[Trial]] = defaultdict(list)
    for trial in pooled:
        pools[trial.problem].append(trial)
    top: list[float] = []
    drawn: list[float] = []
    top_of_all: list[float] = []
    drawn_of_all: list[float] = []
    for problem, pool in pools.items():
        ran = [trial for trial in pool if not math.isnan(trial.outcome)]
        if len(pool) < 2 or not ran:
            continue
        for members, first, mean in ((ran, top, drawn), (pool, top_of_all, drawn_of_all)):
            reached = [
                0.0 if math.isnan(t.outcome) else 2.0 ** (t.outcome - best[problem])
                for t in members
            ]
            value = [t.forecast.p_ok * 2.0 ** t.forecast.distribution.mean() for t in members]
            first.append(reached[int(np.argmax(value))])
            mean.append(float(np.mean(reached)))
    return {
        "top": round(float(np.mean(top)), 4),
        "random": round(float(np.mean(drawn)), 4),
        "top_with_failures": round(float(np.mean(top_of_all)), 4),
        "random_with_failures": round(float(np.mean(drawn_of_all)), 4),
        "pools": len(top),
    }


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
