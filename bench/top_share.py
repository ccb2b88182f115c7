"""Rank once, measure the top: what is lost by measuring only a tenth of a space, or less.

For each tuner space that other GPUs have run, the forecaster sees those GPUs' tables and nothing of
the space itself, and orders it. Loss = 1 - best possible time / best time in the measured share.
Beside it the order of the plain mean of the same tables. Where no GPU of the vendor ran it,
tables of the same kernel at another size stand in (see track_t.py); `without_stand_ins` leaves them
out.

    python bench/top_share.py [--quick] [--out JSON]
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from _data import Floats, Space, siblings_of
from _result import bench_parser, report, save_figure
from kernelcast import Tuner
from track_t import QUICK_SPACES, admitted, known_times, run, spaces

SHARES = (0.10, 0.05, 0.01)


def losses(space: Space, order: list[int]) -> list[float]:
    """For each share, what the best of it lacks."""
    times_ms = space.runtime_ms[order]
    sizes = [math.ceil(share * len(times_ms)) for share in SHARES]
    return [1 - space.best_ms / float(times_ms[:size].min()) for size in sizes]


def forecast_order(space: Space, arm: str) -> list[int]:
    """Before any measurement: fastest first, what probably fails last."""
    tuner = Tuner(space.configurations, device=space.gpu, known=known_times(space, arm, 0))
    forecasts = tuner.forecast()
    p_ok = np.array([forecast.p_ok for forecast in forecasts])
    seconds = np.array([forecast.seconds for forecast in forecasts])
    order = np.lexsort((seconds, p_ok < 0.5))
    return [int(index) for index in order]


def main() -> None:
    arguments = bench_parser(__doc__, quick="four small spaces").parse_args()
    chosen = [space for space in spaces() if admitted(space, "full")]
    if arguments.quick:
        chosen = [space for space in chosen if space.label in QUICK_SPACES]
    ours, plain, strict = [], [], []
    for space in chosen:
        ours.append(losses(space, forecast_order(space, "full")))
        lone = all(each.vendor != space.vendor for each in siblings_of(space, spaces()))
        strict.append(losses(space, forecast_order(space, "other_vendor")) if lone else ours[-1])
        plain.append(losses(space, run(space, "sibling_mean", 0, len(space.keys))))
        print(f"{space.label:36s}", *(f"{loss:.4f}" for loss in ours[-1] + plain[-1]), flush=True)
    loss, baseline = np.array(ours), np.array(plain)
    if arguments.out:
        draw(loss, baseline, arguments.out)
    report(
        {
            "worst_loss_top10": round(float(loss[:, 0].max()), 4),
            "mean_loss_top5": round(float(loss[:, 1].mean()), 4),
            "mean_loss_top1": round(float(loss[:, 2].mean()), 4),
            "worst": [round(float(each), 4) for each in loss.max(axis=0)],
            "mean": [round(float(each), 4) for each in loss.mean(axis=0)],
            "sibling_mean_worst": [round(float(each), 4) for each in baseline.max(axis=0)],
            "sibling_mean_mean": [round(float(each), 4) for each in baseline.mean(axis=0)],
            "without_stand_ins": {
                "worst": [round(float(each), 4) for each in np.max(strict, axis=0)],
                "mean": [round(float(each), 4) for each in np.mean(strict, axis=0)],
            },
            "shares": SHARES,
            "spaces": {
                space.label: [round(each, 4) for each in row]
                for space, row in zip(chosen, ours, strict=True)
            },
        },
        arguments,
    )


def draw(ours: Floats, plain: Floats, out: Path) -> None:
    """Losses of all spaces, sorted, by share measured."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    axes = figure.subplots(1, len(SHARES))
    for axis, share, loss, baseline in zip(axes, SHARES, ours.T, plain.T, strict=True):
        axis.plot(np.sort(loss)[::-1], "o-", markersize=3, label="kernelcast")
        axis.plot(np.sort(baseline)[::-1], "x--", markersize=4, label="mean of the siblings")
        axis.set(title=f"top {share:.0%} measured", xlabel="spaces, worst first", ylabel="loss")
        axis.grid(alpha=0.3)
    axes[0].legend()
    save_figure(figure, out)


if __name__ == "__main__":
    main()
