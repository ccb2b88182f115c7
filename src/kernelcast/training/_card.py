"""The card of a trained source model: what it learnt from, how it scores, where not to trust it."""

from __future__ import annotations

import importlib.metadata
import math
import platform
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from kernelcast.bins import DEFAULT_BINS
from kernelcast.dataset import Rows, problem_group
from kernelcast.scoring import auroc, crps, expected_calibration_error, half_brier, spearman
from kernelcast.training._trials import Trial, Trials

_FEWEST = 30

_LIMITS = """\
## Where it must not be trusted
- It learnt from KernelBench problems in PyTorch, CUDA and Triton, half-precision GEMMs, and ten
  harder problems. Other operators, languages (OpenCL, HIP, C++) and devices are outside of what it
  has seen: it widens for sources made of unknown words, but its failure rates are then a guess.
- Two of its sources publish winners only, so it has seen too few slow kernels of their kind.
- Most of its rows come from single attempts, not from searches. In a long search it leans on what
  the run itself has measured; its first forecasts of a search are little better than a prior.
- It reads text alone. It does not know shapes, strides or what the compiler makes of a kernel
  unless evidence is handed to it, and it has not been trained on evidence.
- A forecast orders and filters. What is reported must have been measured.
"""


def model_card(rows: Rows, trials: Trials, model: Path, seed: int, command: str) -> str:
    """Markdown; every figure is of problems that the model judged was not trained on."""
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("kernelcast", "lightgbm", "numpy")
    )
    problems = {problem_group(name) for name in set(rows["problem"].to_pylist())}
    parts = [
        "# The source model that ships with kernelcast\n",
        "LightGBM trees over a kernel's text, its difference from the anchor, and what a search\n"
        "has measured, to P(failure) and a density over log2 speedup against the anchor.\n",
        f"Made by `{command}` (seed {seed}) with Python {platform.python_version()}, {versions}. "
        f"File: {model.name}, {model.stat().st_size:,} bytes, JSON, no pickle.\n",
        f"## Data\n{rows.num_rows:,} rows, {len(problems):,} problems.\n",
        _table(("source", "licence", "rows", "ran"), _data(rows)),
        "llm_sol_mi350x is kept for evaluation and is not among them.\n",
        "## Scores\nFive folds by problem: one operation under all its names and sizes, and all\n"
        "that share a kernel, stay together. CRPS in log2 speedup over kernels that ran;\n"
        "half-Brier and ECE over nine bins; AUROC of failure within the group.\n",
        "### Searches and pools, replayed step by step\n",
        _scores(trials.searched, "device", lambda trial: trial.device),
        _scores(trials.searched, "family", lambda trial: trial.family),
        "### Texts alone: nothing measured but the reference\n",
        _scores(trials.pooled, "source and model", lambda t: f"{t.source}, {t.model or 'unnamed'}"),
        f"Rank correlation within a pool of at least five: {_ranked(trials.pooled)}.\n",
        _LIMITS,
    ]
    return "\n".join(parts)


def _data(rows: Rows) -> Iterable[Sequence[object]]:
    counted: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    columns = (rows[name].to_pylist() for name in ("source", "licence", "status"))
    for source, licence, status in zip(*columns, strict=True):
        counted[source, licence][0] += 1
        counted[source, licence][1] += status == "ok"
    return [(*key, *counts) for key, counts in sorted(counted.items())]


def _scores(trials: Sequence[Trial], what: str, group: Callable[[Trial], str]) -> str:
    groups: defaultdict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        groups[group(trial)].append(trial)
    lines = [
        (name, *_line(members))
        for name, members in sorted(groups.items())
        if len(members) >= _FEWEST
    ]
    header = (what, "kernels", "failed", "CRPS", "no change", "half-Brier", "ECE", "AUROC failure")
    return _table(header, [*lines, ("all", *_line(trials))])


def _line(trials: Sequence[Trial]) -> Sequence[object]:
    ran = [trial for trial in trials if not math.isnan(trial.outcome)]
    failed = [trial.failed for trial in trials]
    feared = auroc([1.0 - trial.forecast.p_ok for trial in trials], failed)
    shares = f"{np.mean(failed):.0%}"
    if len(ran) < _FEWEST:
        return (len(trials), shares, "", "", "", "", _shown(feared))
    nine = [trial.forecast.distribution.bin_probabilities(DEFAULT_BINS) for trial in ran]
    happened = [DEFAULT_BINS.index(2.0**trial.outcome) for trial in ran]
    right = [float(np.argmax(p) == bin_) for p, bin_ in zip(nine, happened, strict=True)]
    return (
        len(trials),
        shares,
        _shown(np.mean([crps(trial.forecast.distribution, trial.outcome) for trial in ran])),
        _shown(np.mean([abs(trial.outcome) for trial in ran])),
        _shown(np.mean([half_brier(p, bin_) for p, bin_ in zip(nine, happened, strict=True)])),
        _shown(expected_calibration_error([max(p) for p in nine], right)),
        _shown(feared),
    )


def _ranked(pooled: Sequence[Trial]) -> str:
    pools: defaultdict[tuple[str, str], list[Trial]] = defaultdict(list)
    for trial in pooled:
        if not math.isnan(trial.outcome):
            pools[trial.problem, trial.device].append(trial)
    found = [
        spearman([t.forecast.distribution.mean() for t in pool], [t.outcome for t in pool])
        for pool in pools.values()
        if len(pool) >= 5
    ]
    known = [each for each in found if not math.isnan(each)]
    return f"{np.mean(known):.2f} over {len(known)} pools" if known else "no such pool"


def _shown(value: float | np.floating) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


def _table(header: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    rule = ["---"] * len(header)
    rows = [f"| {' | '.join(map(str, line))} |" for line in (header, rule, *lines)]
    return "\n".join(rows) + "\n"
