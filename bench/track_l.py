"""Forecasts of kernels that language models wrote, judged on problems the forecaster never saw.

The 439 recorded searches (llm_sol_mi350x) are replayed step by step through `SourceForecaster`:
each distinct text is forecast against the best so far, then its measurement is learnt. Models are
trained on the other four folds of problems. Beside it: the global prior, "no change", and the prior
of each step. Also the order of each problem's texts with nothing measured, and P(ok) on the
KernelBench sets, within one set and model. CRPS is in log2, over kernels that ran.

    python bench/track_l.py [--quick] [--seed 0] [--out bench/results/track_l.json]
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from _result import bench_parser, report, rounded, save_figure
from _written import KERNELBENCH, examined, rows_of, searched_rows
from kernelcast.bins import DEFAULT_BINS, PAPER_BINS
from kernelcast.scoring import (
    aurc,
    auroc,
    crps,
    expected_calibration_error,
    log_score,
    reliability_table,
    risk_coverage,
    spearman,
)
from kernelcast.training._trials import Trial
from measure import add_bars

Floats = NDArray[np.float64]

_JUDGED = ("crps", "half_brier", "ece", "auroc_failure", "auroc_beats_best")
_BEATS_LOG2 = math.log2(1.05)
_FEWEST_RANKED, _FEWEST_OF_A_CLASS = 5, 5
_LAST_STEP = 30
_NO_KERNELBENCH = {"kernelbench.com"}  # ten problems of its own; trained on, not judged


def main() -> None:
    parser = bench_parser(__doc__, quick="a few problems, two folds")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    began = time.monotonic()
    folds, problems = (2, 14) if arguments.quick else (5, None)
    searched = examined(searched_rows(problems), folds, arguments.seed)
    kernelbench = examined(
        rows_of(KERNELBENCH[:1] if arguments.quick else KERNELBENCH, problems and 30),
        folds,
        arguments.seed,
    )
    trials = searched.searched
    told = [trial for trial in trials if trial.kernel.source]
    ours = _scores(trials, [trial.forecast.distribution for trial in trials])
    ranked = _ranked(searched.pooled)
    ok_by_set = _ok_by_set(kernelbench.pooled)
    figures = {
        **{name: ours[name] for name in _JUDGED},
        "spearman_source_alone": float(np.mean(ranked)),
        "auroc_ok_kernelbench": _weighted(ok_by_set),
    }
    result: dict[str, Any] = {
        "figures": {
            name: {
                "value": round(value, 4),
                "interval": rounded(_interval(name, trials, ranked)),
            }
            for name, value in figures.items()
        },
        "more": rounded(ours),
        "with_text_only": rounded(_scores(told, [trial.forecast.distribution for trial in told])),
        "baselines": rounded(_baselines(trials)),
        "auroc_ok_kernelbench_replayed": round(_weighted(_ok_by_set(kernelbench.searched)), 4),
        "ok_by_set": {name: [round(value, 4), count] for name, (value, count) in ok_by_set.items()},
        "forecasts": len(trials),
        "ran": sum(not math.isnan(trial.outcome) for trial in trials),
        "without_text": len(trials) - len(told),
        "folds": folds,
        "seed": arguments.seed,
        "seconds": round(time.monotonic() - began, 1),
    }
    add_bars("track_l", result)
    if arguments.out:
        _draw(trials, arguments.out)
    report(result, arguments)


# --------------------------------------------------------------------------------------- scores


def _scores(trials: Sequence[Trial], distributions: Sequence[Any]) -> dict[str, float]:
    """Every score of forecasts step by step; a failed kernel does not beat the best."""
    outcome = np.array([trial.outcome for trial in trials])
    failed = np.array([trial.failed for trial in trials])
    feared = np.array([1.0 - trial.forecast.p_ok for trial in trials])
    beats = np.array([each.probability_above(_BEATS_LOG2) for each in distributions])
    did_beat = np.nan_to_num(outcome, nan=-1.0) > _BEATS_LOG2
    ran = ~np.isnan(outcome)
    judged = [each for each, fine in zip(distributions, ran, strict=True) if fine]
    loss = np.array([crps(d, y) for d, y in zip(judged, outcome[ran], strict=True)])
    nine = np.array([each.bin_probabilities(DEFAULT_BINS) for each in judged])
    eight = np.array([each.bin_probabilities(PAPER_BINS) for each in judged])
    bins = DEFAULT_BINS.indices(np.exp2(outcome[ran]))
    confidence, right = nine.max(axis=1), (nine.argmax(axis=1) == bins).astype(np.float64)
    return {
        "crps": float(loss.mean()),
        "half_brier": float(_half_briers(nine, bins).mean()),
        "ece": expected_calibration_error(confidence, right),
        "auroc_failure": auroc(feared, failed),
        "auroc_beats_best": auroc((1.0 - feared) * beats, did_beat),
        "auroc_beats_best_if_it_runs": auroc(beats[ran], did_beat[ran]),
        "half_brier_paper_bins": float(
            _half_briers(eight, PAPER_BINS.indices(np.exp2(outcome[ran]))).mean()
        ),
        "log_score": float(
            np.mean(
                [log_score(d, y, floor=1e-3) for d, y in zip(judged, outcome[ran], strict=True)]
            )
        ),
        "aurc_crps": aurc(confidence, loss),
    }


def _half_briers(probabilities: Floats, happened: NDArray[np.intp]) -> Floats:
    hit = probabilities[np.arange(len(happened)), happened]
    return np.asarray(((probabilities**2).sum(axis=1) + 1.0 - 2.0 * hit) / 2.0)


def _ranked(pooled: Sequence[Trial]) -> list[float]:
    """Rank correlation of each problem's texts, from the texts alone."""
    pools: defaultdict[str, list[Trial]] = defaultdict(list)
    for trial in pooled:
        if not math.isnan(trial.outcome):
            pools[trial.problem].append(trial)
    found = [
        spearman([t.forecast.distribution.mean() for t in pool], [t.outcome for t in pool])
        for pool in pools.values()
        if len(pool) >= _FEWEST_RANKED
    ]
    return [each for each in found if not math.isnan(each)]


def _ok_by_set(pooled: Sequence[Trial]) -> dict[str, tuple[float, int]]:
    """AUROC of P(ok) within one KernelBench set and model with enough of both outcomes."""
    sets: defaultdict[str, list[Trial]] = defaultdict(list)
    for trial in pooled:
        if trial.source in _NO_KERNELBENCH:
            continue
        sets[f"{trial.source}, {trial.model or 'unnamed'}"].append(trial)
    found = {}
    for name, members in sorted(sets.items()):
        failures = sum(each.failed for each in members)
        if min(failures, len(members) - failures) >= _FEWEST_OF_A_CLASS:
            p_ok = [each.forecast.p_ok for each in members]
            found[name] = (auroc(p_ok, [not each.failed for each in members]), len(members))
    return found


def _weighted(by_set: dict[str, tuple[float, int]]) -> float:
    if not by_set:
        return math.nan
    values, counts = zip(*by_set.values(), strict=True)
    return float(np.average(values, weights=counts))


def _interval(name: str, trials: Sequence[Trial], ranked: Sequence[float]) -> list[float]:
    """95% of 200 draws of whole problems; none where a figure is over sets."""
    rng = np.random.default_rng(0)
    if name == "spearman_source_alone":
        draws = [float(np.mean(rng.choice(ranked, len(ranked)))) for _ in range(200)]
        return list(np.quantile(draws, [0.025, 0.975]))
    if name == "auroc_ok_kernelbench":
        return []
    if name not in _CACHE:
        _CACHE.update(_bootstrap(trials, rng))
    return _CACHE[name]


_CACHE: dict[str, list[float]] = {}


def _bootstrap(trials: Sequence[Trial], rng: np.random.Generator) -> dict[str, list[float]]:
    problem = np.array([trial.problem for trial in trials])
    outcome = np.array([trial.outcome for trial in trials])
    failed = np.array([trial.failed for trial in trials])
    ran = ~np.isnan(outcome)
    feared = np.array([1.0 - trial.forecast.p_ok for trial in trials])
    beats = np.array([t.forecast.distribution.probability_above(_BEATS_LOG2) for t in trials])
    did_beat = np.nan_to_num(outcome, nan=-1.0) > _BEATS_LOG2
    nine = np.array([t.forecast.distribution.bin_probabilities(DEFAULT_BINS) for t in trials])
    bins = np.zeros(len(trials), dtype=np.intp)
    bins[ran] = DEFAULT_BINS.indices(np.exp2(outcome[ran]))
    loss = np.array(
        [
            crps(t.forecast.distribution, t.outcome) if not math.isnan(t.outcome) else 0.0
            for t in trials
        ]
    )
    brier = _half_briers(nine, bins)
    right = (nine.argmax(axis=1) == bins).astype(np.float64)
    members = {name: np.flatnonzero(problem == name) for name in np.unique(problem)}
    names = list(members)
    draws: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(200):
        rows = np.concatenate([members[names[i]] for i in rng.integers(0, len(names), len(names))])
        timed = rows[ran[rows]]
        draws["crps"].append(float(loss[timed].mean()))
        draws["half_brier"].append(float(brier[timed].mean()))
        draws["ece"].append(expected_calibration_error(nine[timed].max(axis=1), right[timed]))
        draws["auroc_failure"].append(auroc(feared[rows], failed[rows]))
        draws["auroc_beats_best"].append(auroc(((1 - feared) * beats)[rows], did_beat[rows]))
    return {name: list(np.quantile(values, [0.025, 0.975])) for name, values in draws.items()}


# ------------------------------------------------------------------------------------- baselines


def _baselines(trials: Sequence[Trial]) -> dict[str, dict[str, float]]:
    """What the other folds' outcomes say, regardless of the kernel."""

    def everything(_: Trial) -> Callable[[Trial], bool]:
        return lambda _: True

    def same_step(trial: Trial) -> Callable[[Trial], bool]:
        step = min(trial.step, _LAST_STEP)
        return lambda other: min(other.step, _LAST_STEP) == step

    ran = [trial for trial in trials if not math.isnan(trial.outcome)]
    unchanged = np.abs([trial.outcome for trial in ran])
    tie = DEFAULT_BINS.index(1.0)
    bins = DEFAULT_BINS.indices(np.exp2([trial.outcome for trial in ran]))
    return {
        "global_prior": _prior(trials, everything),
        "per_step_prior": _prior(trials, same_step),
        "no_change": {
            "crps": float(unchanged.mean()),
            "half_brier": float(np.mean(bins != tie)),
            "ece": float(np.mean(bins != tie)),
        },
    }


def _prior(
    trials: Sequence[Trial], like: Callable[[Trial], Callable[[Trial], bool]]
) -> dict[str, float]:
    """Scores of the outcomes of like trials in other folds, taken as the forecast."""
    known: dict[tuple[int, int], tuple[Floats, float, float]] = {}
    loss, brier, confidence, right, feared, beats = [], [], [], [], [], []
    for trial in trials:
        key = (trial.fold, min(trial.step, _LAST_STEP))
        if key not in known:
            others = [t for t in trials if t.fold != trial.fold and like(trial)(t)]
            others = others if len(others) >= 20 else [t for t in trials if t.fold != trial.fold]
            timed = np.sort([t.outcome for t in others if not math.isnan(t.outcome)])
            fails = float(np.mean([t.failed for t in others]))
            known[key] = (timed, fails, float(np.mean(timed > _BEATS_LOG2)))
        timed, fails, above = known[key]
        feared.append(fails)
        beats.append((1.0 - fails) * above)
        if math.isnan(trial.outcome):
            continue
        weights = 2.0 * np.arange(1, timed.size + 1) - timed.size - 1.0
        spread = float(weights @ timed) / timed.size**2
        loss.append(float(np.abs(timed - trial.outcome).mean()) - spread)
        shares = np.bincount(DEFAULT_BINS.indices(np.exp2(timed)), minlength=9) / timed.size
        happened = DEFAULT_BINS.index(2.0**trial.outcome)
        brier.append(float(shares @ shares + 1.0 - 2.0 * shares[happened]) / 2.0)
        confidence.append(float(shares.max()))
        right.append(float(shares.argmax() == happened))
    did_beat = [trial.outcome > _BEATS_LOG2 for trial in trials]
    return {
        "crps": float(np.mean(loss)),
        "half_brier": float(np.mean(brier)),
        "ece": expected_calibration_error(confidence, right),
        "auroc_failure": auroc(feared, [trial.failed for trial in trials]),
        "auroc_beats_best": auroc(beats, did_beat),
    }


def _draw(trials: Sequence[Trial], out: Path) -> None:
    """Reliability, risk by coverage, and the error by step beside the per-step prior."""
    ran = [trial for trial in trials if not math.isnan(trial.outcome)]
    nine = np.array([t.forecast.distribution.bin_probabilities(DEFAULT_BINS) for t in ran])
    bins = DEFAULT_BINS.indices(np.exp2([t.outcome for t in ran]))
    right = (nine.argmax(axis=1) == bins).astype(np.float64)
    loss = np.array([crps(t.forecast.distribution, t.outcome) for t in ran])
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    axes = figure.subplots(1, 3)
    table = reliability_table(nine.max(axis=1), right)
    axes[0].plot([0, 1], [0, 1], color="0.7", linewidth=1)
    axes[0].plot([r.mean_confidence for r in table], [r.accuracy for r in table], marker="o")
    axes[0].set(xlabel="claimed", ylabel="right", title="nine bins: claimed and right")
    curve = risk_coverage(nine.max(axis=1), loss)
    axes[1].plot(curve.coverage, curve.risk)
    axes[1].axhline(loss.mean(), color="0.7", linewidth=1)
    axes[1].set(xlabel="share kept, surest first", ylabel="mean CRPS, log2", title="risk, coverage")
    step = np.minimum([t.step for t in ran], _LAST_STEP)
    steps = np.unique(step)
    axes[2].plot(steps, [loss[step == each].mean() for each in steps], label="CRPS")
    axes[2].plot(
        steps,
        [np.abs([t.outcome for t in ran])[step == each].mean() for each in steps],
        label="no change",
        color="0.6",
    )
    axes[2].set(xlabel="step of the search", ylabel="log2", title="error by step")
    axes[2].legend(frameon=False)
    save_figure(figure, out)


if __name__ == "__main__":
    main()
