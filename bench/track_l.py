"""Forecasts of kernels that language models wrote, judged on problems the forecaster never saw.

The 439 recorded searches (llm_sol_mi350x) are replayed step by step through `SourceForecaster`:
each distinct kernel is forecast against the best so far, then its measurement is learnt. Models are
trained on the other four folds of problems. Beside it: the global prior, "no change", and the prior
of each step. Also the order of each problem's texts with nothing measured, and P(ok) on the
KernelBench sets, within one set and model. CRPS is in log2, over kernels that ran.

    python bench/track_l.py [--quick] [--seed 0] [--out bench/results/track_l.json]

With --leave-source-out, sources are held out in place of problems (`track_l_sources.py`).
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

import track_l_sources
from _result import bench_parser, report, rounded, save_figure
from _written import KERNELBENCH, folds_of, rows_of, searched_rows
from kernelcast.bins import DEFAULT_BINS
from kernelcast.dataset import Rows
from kernelcast.judge.evaluation import Answer, Evaluation, evaluate
from kernelcast.scoring import auroc, crps, expected_calibration_error
from measure import add_bars

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_JUDGED = {"crps": "crps", "half_brier": "half_brier", "ece": "ece"} | {
    "auroc_failure": "auroc_failure",
    "auroc_beats_best": "auroc_gain",
}
"""Figures of this bench and what `evaluate` calls them."""
_BEATS_LOG2 = math.log2(1.05)
_FEWEST_OF_A_CLASS = 5
_FEWEST_OF_A_STEP = 20
_LAST_STEP = 30
_NO_KERNELBENCH = {"kernelbench.com"}  # ten problems of its own; trained on, not judged


def main() -> None:
    parser = bench_parser(__doc__, quick="a few problems, two folds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--leave-source-out", action="store_true", help="the figures of track_l_sources.py instead"
    )
    options = parser.parse_args()
    if options.leave_source_out:
        track_l_sources.run(options)
        return
    began = time.monotonic()
    folds, problems = (2, 14) if options.quick else (5, None)
    searched: list[list[Answer]] = []
    pooled: list[Answer] = []
    for fold in folds_of(searched_rows(problems), folds, options.seed):
        searched.append(fold.searched())
        pooled += fold.pooled()
    kernelbench = rows_of(KERNELBENCH[:1] if options.quick else KERNELBENCH, problems and 30)
    texts_alone: list[Answer] = []
    replayed: list[Answer] = []
    for fold in folds_of(kernelbench, folds, options.seed):
        texts_alone += fold.pooled()
        replayed += fold.searched()
    ours, texts = evaluate([answer for part in searched for answer in part]), evaluate(pooled)
    ok_by_set = _ok_by_set(texts_alone, kernelbench)
    outcomes = _Outcomes.of(searched)
    figures = {
        **{name: _figure(ours, theirs) for name, theirs in _JUDGED.items()},
        "spearman_source_alone": _figure(texts, "spearman"),
        "auroc_ok_kernelbench": {"value": round(_weighted(ok_by_set), 4), "interval": []},
    }
    result: dict[str, Any] = {
        "figures": figures,
        "more": rounded({name: estimate.value for name, estimate in ours.scores.items()})
        | {name: figures[name]["value"] for name in _JUDGED},
        "baselines": rounded(_baselines(outcomes)),
        "auroc_ok_kernelbench_replayed": round(_weighted(_ok_by_set(replayed, kernelbench)), 4),
        "ok_by_set": {name: [round(value, 4), count] for name, (value, count) in ok_by_set.items()},
        "forecasts": ours.kernels,
        "ran": ours.timed,
        "folds": folds,
        "seed": options.seed,
        "seconds": round(time.monotonic() - began, 1),
    }
    add_bars("track_l", result)
    if options.out:
        _draw(ours, [answer for part in searched for answer in part], outcomes, options.out)
    report(result, options)


def _figure(evaluation: Evaluation, name: str) -> dict[str, Any]:
    estimate = evaluation.scores[name]
    interval = [estimate.low, estimate.high]
    return {"value": round(estimate.value, 4), "interval": rounded(interval)}


# ---------------------------------------------------------------------------- KernelBench sets


def _ok_by_set(answers: Iterable[Answer], rows: Rows) -> dict[str, tuple[float, int]]:
    """AUROC of P(ok) and number of kernels, of each set and model with enough of both outcomes."""
    columns = (rows[name].to_pylist() for name in ("row_id", "source", "model"))
    origin = {row_id: (source, model) for row_id, source, model in zip(*columns, strict=True)}
    sets: defaultdict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        source, model = origin[answer.trial.row_id]
        if source not in _NO_KERNELBENCH:
            sets[f"{source}, {model or 'unnamed'}"].append(answer)
    scores = {}
    for name, members in sorted(sets.items()):
        ok = [answer.trial.ok for answer in members]
        if min(sum(ok), len(ok) - sum(ok)) >= _FEWEST_OF_A_CLASS:
            scores[name] = (auroc([answer.forecast.p_ok for answer in members], ok), len(members))
    return scores


def _weighted(by_set: dict[str, tuple[float, int]]) -> float:
    if not by_set:
        return math.nan
    values, counts = zip(*by_set.values(), strict=True)
    return float(np.average(values, weights=counts))


# ------------------------------------------------------------------------------------- baselines


@dataclass(frozen=True, eq=False)
class _Outcomes:
    """What happened, one entry an answer; `log2_speedup` is nan without a time."""

    fold: Integers
    step: Integers
    log2_speedup: Floats
    failed: NDArray[np.bool_]

    @classmethod
    def of(cls, folds: Sequence[Sequence[Answer]]) -> _Outcomes:
        entries: list[tuple[int, int, float | None, bool]] = []
        for fold, answers in enumerate(folds):
            asked: Counter[int] = Counter()
            for answer in answers:
                step = min(asked[answer.pool], _LAST_STEP)
                asked[answer.pool] += 1
                entries.append((fold, step, answer.trial.log2_speedup, not answer.trial.ok))
        fold_, step_, log2_speedup, failed = zip(*entries, strict=True)
        return cls(
            np.array(fold_), np.array(step_), np.array(log2_speedup, dtype=float), np.array(failed)
        )


def _baselines(outcomes: _Outcomes) -> dict[str, dict[str, float]]:
    """Scores of forecasts that do not read the kernel."""
    timed = outcomes.log2_speedup[~np.isnan(outcomes.log2_speedup)]
    moved = float(np.mean(DEFAULT_BINS.indices(np.exp2(timed)) != DEFAULT_BINS.index(1.0)))
    return {
        "global_prior": _prior(outcomes, np.zeros_like(outcomes.step)),
        "per_step_prior": _prior(outcomes, outcomes.step),
        "no_change": {"crps": float(np.abs(timed).mean()), "half_brier": moved, "ece": moved},
    }


def _prior(outcomes: _Outcomes, kind: Integers) -> dict[str, float]:
    """Scores of the outcomes of one kind in the other folds, taken as the forecast."""
    outcome = outcomes.log2_speedup
    feared, beats = np.empty(outcome.size), np.empty(outcome.size)
    loss, brier, confidence, right = (np.full(outcome.size, np.nan) for _ in range(4))
    for fold, value in sorted(set(zip(outcomes.fold.tolist(), kind.tolist(), strict=True))):
        others = (outcomes.fold != fold) & (kind == value)
        if others.sum() < _FEWEST_OF_A_STEP:
            others = outcomes.fold != fold
        known = np.sort(outcome[others & ~np.isnan(outcome)])
        asked = np.flatnonzero((outcomes.fold == fold) & (kind == value))
        feared[asked] = outcomes.failed[others].mean()
        beats[asked] = (1.0 - feared[asked]) * np.mean(known > _BEATS_LOG2)
        ran = asked[~np.isnan(outcome[asked])]
        weights = 2.0 * np.arange(1, known.size + 1) - known.size - 1.0
        spread = float(weights @ known) / known.size**2
        loss[ran] = np.abs(known - outcome[ran, None]).mean(axis=1) - spread
        shares = np.bincount(DEFAULT_BINS.indices(np.exp2(known)), minlength=9) / known.size
        happened = DEFAULT_BINS.indices(np.exp2(outcome[ran]))
        brier[ran] = (shares @ shares + 1.0 - 2.0 * shares[happened]) / 2.0
        confidence[ran], right[ran] = shares.max(), happened == shares.argmax()
    ran = ~np.isnan(outcome)
    return {
        "crps": float(loss[ran].mean()),
        "half_brier": float(brier[ran].mean()),
        "ece": expected_calibration_error(confidence[ran], right[ran]),
        "auroc_failure": auroc(feared, outcomes.failed),
        "auroc_beats_best": auroc(beats, np.nan_to_num(outcome, nan=-1.0) > _BEATS_LOG2),
    }


def _draw(
    evaluation: Evaluation, answers: Sequence[Answer], outcomes: _Outcomes, out: Path
) -> None:
    """Reliability, risk by coverage, and the error by step beside that of "no change"."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    axes = figure.subplots(1, 3)
    claimed, right, _ = zip(*evaluation.reliability, strict=True)
    axes[0].plot([0, 1], [0, 1], color="0.7", linewidth=1)
    axes[0].plot(claimed, right, marker="o")
    axes[0].set(xlabel="claimed", ylabel="right", title="nine bins: claimed and right")
    curve = evaluation.risk_coverage
    axes[1].plot(curve.coverage, curve.risk)
    axes[1].axhline(curve.risk[-1], color="0.7", linewidth=1)
    axes[1].set(xlabel="share kept, surest first", ylabel="half-Brier", title="risk, coverage")
    ran = np.flatnonzero(~np.isnan(outcomes.log2_speedup))
    change = outcomes.log2_speedup[ran]
    loss = np.array(
        [
            crps(answers[at].forecast.distribution, y)
            for at, y in zip(ran.tolist(), change.tolist(), strict=True)
        ]
    )
    steps = np.unique(outcomes.step[ran])
    for values, label, colour in ((loss, "CRPS", "tab:blue"), (np.abs(change), "no change", "0.6")):
        means = [values[outcomes.step[ran] == step].mean() for step in steps]
        axes[2].plot(steps, means, label=label, color=colour)
    axes[2].set(xlabel="step of the search", ylabel="log2", title="error by step")
    axes[2].legend(frameon=False)
    save_figure(figure, out)


if __name__ == "__main__":
    main()
