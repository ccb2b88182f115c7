"""What users get: forecasts of kernels from a source that the model has never seen.

The shipped model is trained by one recipe on all publishable sources. Here the same recipe trains a
model without one source, for each source with at least 50 failures, and is judged on that source;
the recorded searches (llm_sol_mi350x), which no shipped model may learn from, are judged by the
model of all the others. Three ways:

- `nothing`: all texts of a problem at once, with nothing measured but the reference. Here the order
  of the texts is judged, too: by rank correlation, and by what the top-ranked kernel reaches of its
  pool's best, beside a random one.
- `stepwise`: along each search (a pool in a random order), learning from that search alone.
- `stored`: the same, where a search also knows the measurements of the searches before it, as one
  in a user's store does.

A source that published no times is judged by `nothing` alone: its successes teach nothing.

Beside them: the global prior and that of each step, which know the source's own outcomes. CRPS is
in log2, over kernels that ran.

    python bench/track_l_sources.py [--quick] [--seed 0] [--models FOLDER] [--out JSON]

Models are kept in the folder, if there is one, and not trained again.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from _result import bench_parser, report, rounded
from _written import PUBLISHABLE, pool_tops, rows_of, searched_rows
from kernelcast.forecasters._source import SourceModel
from kernelcast.judge.evaluation import Answer, evaluate
from kernelcast.scoring import auroc
from kernelcast.training.folds import Fold, leave_source_out
from kernelcast.training.trees import train_source_model

SEARCHED = "sol-execbench-rocm"
_FEWEST_FAILURES = 50
_FEWEST_TIMED = 30
_FEWEST_OF_A_STEP = 20
_LAST_STEP = 30
_GRID = np.arange(-7.0, 7.01, 0.02)


def main() -> None:
    parser = bench_parser(__doc__, quick="one small source")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", type=Path, help="where trained models are kept")
    run(parser.parse_args())


def run(options: argparse.Namespace) -> None:
    """Train, judge and report."""
    began = time.monotonic()
    sources = {}
    models = None if options.quick else getattr(options, "models", None)
    for name, fold in _sources(options.seed, models, quick=options.quick):
        sources[name] = _judged(fold)
        print(f"{name}: {sources[name]}, {time.monotonic() - began:.0f} s", flush=True)
    report(rounded({**_worst(sources), "sources": sources, "seed": options.seed}), options)


def _sources(seed: int, models: Path | None, *, quick: bool) -> Iterator[tuple[str, Fold]]:
    if quick:
        rows = rows_of(("llm_kb_small_sets", "llm_kernelbench_com"), 30)
        parts = list(leave_source_out(rows, 10))[:1]
    else:
        rows = rows_of(PUBLISHABLE)
        parts = [*leave_source_out(rows, _FEWEST_FAILURES), (SEARCHED, rows, searched_rows())]
    for number, (source, train, test) in enumerate(parts):
        path = None if models is None else models / f"{source.replace('/', '-')}-{seed}.json.zst"
        if path is not None and path.exists():
            model = SourceModel.load(path)
        else:
            model = train_source_model(train, seed)
            if path is not None:
                model.save(path)
        yield source, Fold(number, model, test, seed)


def _judged(fold: Fold) -> dict[str, Any]:
    nothing = fold.pooled()
    scores = {"nothing": _scores(nothing)}
    if "crps" in scores["nothing"]:
        scores["nothing"] |= _order(nothing)
        scores |= {"stepwise": _scores(fold.searched()), "stored": _scores(fold.stored())}
    return scores


def _scores(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return the scores of one source; of CRPS its ratio to both priors."""
    failed = np.array([not answer.trial.ok for answer in answers])
    feared = np.array([1.0 - answer.forecast.p_ok for answer in answers])
    judged = evaluate(answers)
    scores: dict[str, Any] = {
        "kernels": len(answers),
        "failed": float(failed.mean()),
        "feared": float(feared.mean()),
        "auroc_failure": auroc(feared, failed),
    }
    if judged.timed < _FEWEST_TIMED:
        return scores
    crps = judged.scores["crps"].value
    overall, by_step = _priors(answers)
    return scores | {
        "timed": judged.timed,
        "crps": crps,
        "to_global_prior": crps / overall,
        "to_step_prior": crps / by_step,
        "ece": judged.scores["ece"].value,
        "coverage_80": judged.scores["coverage_80"].value,
    }


def _order(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return how well pools are ordered: rank correlation, and what the first kernel reaches."""
    tops = pool_tops(answers)
    correlation = evaluate(answers).scores["spearman"].value
    reached = {f"pool_{name}": share for name, share in tops.items() if name != "pools"}
    return {"spearman": correlation, **reached, "pools": tops["pools"]}


def _priors(answers: Sequence[Answer]) -> tuple[float, float]:
    """Return the CRPS of the source's own outcomes as the forecast: of all, and of each step."""
    asked: Counter[int] = Counter()
    steps, outcomes = [], []
    for answer in answers:
        step = min(asked[answer.pool], _LAST_STEP)
        asked[answer.pool] += 1
        if answer.trial.log2_speedup is not None:
            steps.append(step)
            outcomes.append(answer.trial.log2_speedup)
    step_of, outcome = np.array(steps), np.array(outcomes)
    common = _crps_of_shares(outcome, outcome)
    by_step = common.copy()
    for step in np.unique(step_of):
        here = step_of == step
        if here.sum() >= _FEWEST_OF_A_STEP:
            by_step[here] = _crps_of_shares(outcome[here], outcome[here])
    return float(common.mean()), float(by_step.mean())


def _crps_of_shares(known: Any, outcome: Any) -> Any:
    """Return the CRPS of each outcome, if the forecast is how the known ones are spread."""
    below = np.searchsorted(np.sort(known), _GRID, side="right") / len(known)
    happened = outcome[:, None] <= _GRID
    return ((below - happened) ** 2).sum(axis=1) * (_GRID[1] - _GRID[0])


def _worst(sources: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return the worst source of each figure."""

    def over(pick: Any, way: str, name: str) -> float:
        values = [ways[way][name] for ways in sources.values() if name in ways.get(way, {})]
        return float(pick(values)) if values else math.nan

    return {
        "auroc_failure_nothing": over(min, "nothing", "auroc_failure"),
        "auroc_failure_stepwise": over(min, "stepwise", "auroc_failure"),
        "auroc_failure_stored": over(min, "stored", "auroc_failure"),
        "crps_to_global_prior": over(max, "stored", "to_global_prior"),
        "crps_to_step_prior": over(max, "stored", "to_step_prior"),
        "ece": over(max, "stored", "ece"),
    }


if __name__ == "__main__":
    main()
