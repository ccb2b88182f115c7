"""Track X: how well the speedup of a text on one GPU tells that of the same text on another.

Two sets: kernels of CUDA-L1, where every text is a winner on the GPU it was made for, and compiled
against eager PyTorch on the problems of KernelBench. For each ordered pair of GPUs the log2 speedup
on the first is taken as the forecast for the second; how wide to make it is learned from the first
GPU against all others but the second. The baseline is the median of all other GPUs' speedups.
Reported, not judged: no part of kernelcast is in it.

    python bench/track_x.py [--quick] [--out bench/results/track_x.json]
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from _data import Floats, read_columns
from _result import bench_parser, report, rounded, save_figure
from kernelcast.dataset.keys import device_group
from kernelcast.scoring import spearman

SpeedupsByGpu = dict[str, dict[str, float]]
"""GPU -> text -> log2 speedup."""

_LEAST_TEXTS = 30
_LEVELS = (0.5, 0.9)


def cuda_l1() -> SpeedupsByGpu:
    """Kernels that a model wrote, by their text."""
    rows = read_columns("llm_cuda_l1_5gpu", ("gpu", "candidate_sha", "speedup"))
    return _medians(list(zip(*rows.values(), strict=True)))


def compiled_pytorch() -> SpeedupsByGpu:
    """What compiling gives over eager PyTorch, by problem and way of compiling."""
    rows = read_columns("ref_kernelbench_timings", ("gpu", "problem", "params", "speedup"))
    named = [
        (gpu, f"{problem} {mode}", speedup)
        for gpu, problem, params, speedup in zip(*rows.values(), strict=True)
        if (mode := json.loads(params)["mode"]) != "eager" and speedup
    ]
    return _medians(named)


def _medians(rows: list[tuple[str, str, float]]) -> SpeedupsByGpu:
    found: defaultdict[str, defaultdict[str, list[float]]]
    found = defaultdict(lambda: defaultdict(list))
    for gpu, text, speedup in rows:
        found[device_group(gpu)][text].append(float(np.log2(speedup)))
    return {
        gpu: {text: float(np.median(values)) for text, values in texts.items()}
        for gpu, texts in sorted(found.items())
        if len(texts) >= _LEAST_TEXTS
    }


def paired(set_: SpeedupsByGpu, first: str, second: str) -> tuple[Floats, Floats]:
    """The texts that both GPUs ran."""
    texts = sorted(set_[first].keys() & set_[second].keys())
    return (
        np.array([set_[first][text] for text in texts]),
        np.array([set_[second][text] for text in texts]),
    )


def across(set_: SpeedupsByGpu) -> dict[str, Any]:
    """Every ordered pair of GPUs with enough texts, and all pairs together."""
    pairs = []
    errors, baseline_errors, covered = [], [], defaultdict(list)
    for first in set_:
        for second in set_:
            told, truth = paired(set_, first, second)
            if first == second or len(told) < _LEAST_TEXTS:
                continue
            error = np.abs(truth - told)
            others = [value for gpu in set_ if gpu != second for value in set_[gpu].values()]
            baseline_error = np.abs(truth - np.median(others))
            pair: dict[str, Any] = {
                "from": first,
                "to": second,
                "texts": len(told),
                "spearman": spearman(told, truth),
                "median_error_log2": float(np.median(error)),
                "global_median_error_log2": float(np.median(baseline_error)),
            }
            errors.append(error)
            baseline_errors.append(baseline_error)
            shifts = [
                np.subtract(*reversed(paired(set_, first, gpu)))
                for gpu in set_
                if gpu not in (first, second)
            ]
            learned = np.concatenate(shifts) if shifts else np.empty(0)
            if len(learned) >= _LEAST_TEXTS:
                normal = NormalDist(float(learned.mean()), float(learned.std()))
                for level in _LEVELS:
                    low, high = (normal.inv_cdf(0.5 + side * level / 2) for side in (-1, 1))
                    inside = (truth - told >= low) & (truth - told <= high)
                    covered[level].append(inside)
                    pair[f"coverage_{level:.0%}"] = float(inside.mean())
            pairs.append(pair)
    overall = {
        "gpus": len(set_),
        "pairs": len(pairs),
        "texts": len(set().union(*set_.values())),
        "median_spearman": float(np.median([pair["spearman"] for pair in pairs])),
        "lowest_spearman": min(pair["spearman"] for pair in pairs),
        "median_error_log2": float(np.median(np.concatenate(errors))),
        "global_median_error_log2": float(np.median(np.concatenate(baseline_errors))),
        **{
            f"coverage_{level:.0%}": float(np.concatenate(inside).mean())
            for level, inside in covered.items()
        },
    }
    return {"overall": overall, "pairs": pairs}


def draw(results: dict[str, dict[str, Any]], out: Path) -> None:
    """For each set, rank correlation and error by pair of GPUs."""
    shown = {
        "spearman": ("Spearman", "viridis", 1.0),
        "median_error_log2": ("median |log2 error|", "magma_r", None),
    }
    figure = Figure(figsize=(13, 5.6 * len(results)), layout="constrained")
    axes = figure.subplots(len(results), 2, squeeze=False)
    for row, (name, result) in zip(axes, results.items(), strict=True):
        gpus = sorted({pair["from"] for pair in result["pairs"]})
        for axis, (key, (title, colours, top)) in zip(row, shown.items(), strict=True):
            grid = np.full((len(gpus), len(gpus)), np.nan)
            for pair in result["pairs"]:
                grid[gpus.index(pair["from"]), gpus.index(pair["to"])] = pair[key]
            image = axis.imshow(grid, cmap=colours, vmin=0.0, vmax=top)
            middle = (np.nanmax(grid) if top is None else top) / 2
            for (y, x), value in np.ndenumerate(grid):
                if np.isfinite(value):
                    dark = (value < middle) == (top is not None)
                    axis.text(
                        *(x, y, f"{value:.2f}"),
                        ha="center",
                        va="center",
                        fontsize=7,
                        color="white" if dark else "black",
                    )
            axis.set_xticks(range(len(gpus)), gpus, rotation=45, ha="right")
            axis.set_yticks(range(len(gpus)), gpus)
            axis.set_xlabel("forecast for")
            axis.set_ylabel("measured on")
            axis.set_title(f"{name}: {title}")
            figure.colorbar(image, ax=axis, shrink=0.8)
    save_figure(figure, out)


def main() -> None:
    arguments = bench_parser(__doc__, quick="the kernels of CUDA-L1 only").parse_args()
    sets = {"CUDA-L1": cuda_l1}
    if not arguments.quick:
        sets["compiled PyTorch"] = compiled_pytorch
    results = {name: across(load()) for name, load in sets.items()}
    for name, result in results.items():
        print(name, json.dumps(rounded(result["overall"])))
        for pair in result["pairs"]:
            print(" ", json.dumps(rounded(pair)))
    if arguments.out:
        draw(results, arguments.out)
    report({name: rounded(result) for name, result in results.items()}, arguments)


if __name__ == "__main__":
    main()
