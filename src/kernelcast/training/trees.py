"""Training of the source model from rows of measured kernels.

The same function trains the model that ships, users' models and the models of a bench's folds.
Calibration is learnt on problems that the trees it corrects have not seen; then the trees are
grown on all rows.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from kernelcast.dataset import UNSTATED, Rows, Trial, Trials, recorded_trials
from kernelcast.errors import SetupError
from kernelcast.forecasters._features import (
    SearchHistory,
    SourceFeatures,
    candidate_digest,
    choose_vocabulary,
)
from kernelcast.forecasters._source import (
    CLASS_EDGES,
    GROUP_OF_CLASS,
    Header,
    SourceModel,
    pool_rows,
)
from kernelcast.types import FailureKind

if TYPE_CHECKING:
    import lightgbm

Floats = NDArray[np.float64]

EVALUATION_ONLY = ("sol-execbench-rocm",)
"""Sources that were published for evaluation only."""

_VOCABULARY = 240
_CLASSES = len(CLASS_EDGES) + 1
_LEVELS = np.arange(1, 8) / 8.0  # quantiles kept within a class
_WIDEST_LOG2 = 7.0
_EARLIER = 2  # examples of a trial as if it had come earlier in its search
_EARLIER_WEIGHT = 0.4
_SOURCE_WEIGHT_LIMIT = 2000.0
_HELD_OUT = 4  # every fourth problem calibrates

_GROWING: dict[str, Any] = {
    "num_threads": 1,
    "verbose": -1,
    "deterministic": True,
    "force_row_wise": True,
    "max_bin": 31,
    "bagging_freq": 1,
    "bagging_fraction": 0.7,
    "feature_fraction": 0.2,
    "min_data_in_leaf": 20,
    "lambda_l2": 10.0,
}
_SETTINGS: dict[str, dict[str, Any]] = {
    "density": {
        "objective": "multiclass",
        "num_class": _CLASSES,
        "learning_rate": 0.05,
        "num_leaves": 8,
    },
    "failure": {"objective": "binary", "learning_rate": 0.03, "num_leaves": 12},
    "order": {
        "objective": "regression",
        "learning_rate": 0.03,
        "num_leaves": 16,
        "min_data_in_leaf": 15,
        "lambda_l2": 5.0,
    },
}
_ROUNDS = {"density": 120, "failure": 200, "order": 400}


@dataclass(frozen=True, eq=False)
class _Examples:
    """Rows that the density and failure trees read; `outcome` is nan without a speedup.

    `genuine` marks trials at their own place in the search, `held_out` those that calibrate.
    """

    rows: NDArray[np.float32]
    outcome: Floats
    failed: NDArray[np.bool_]
    weight: Floats
    genuine: NDArray[np.bool_]
    held_out: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class _PoolExamples:
    """Rows that the order trees read, of kernels that ran in pools of at least two.

    `place` is the rank in the pool from -0.5 (slowest) to 0.5; `about_mean` is the log2 speedup
    against the pool's mean.
    """

    rows: NDArray[np.float32]
    place: Floats
    about_mean: Floats
    held_out: NDArray[np.bool_]


def train_source_model(rows: Rows, seed: int = 0) -> SourceModel:
    """Train the trees and their calibration on all rows that have a kernel's text.

    Args:
        rows: Measured kernels; configurations of a template are left out.
        seed: Seed of every random choice; the same rows and seed give the same model.

    Raises:
        SetupError: No row has a kernel's text.
    """
    searches = list(recorded_trials(rows, order="shuffled", seed=seed))
    trials = [(s.group, trial) for s in searches for trial in s.trials if _is_text(trial)]
    if not trials:
        raise SetupError("no row has a kernel's text: import rows with `kernelcast data import`")
    texts = [(group, candidate_digest(trial.query)) for group, trial in trials]
    features = SourceFeatures(choose_vocabulary(texts, _VOCABULARY))
    groups = sorted({search.group for search in searches})
    calibrating = set(np.random.default_rng(seed).permutation(groups)[: len(groups) // _HELD_OUT])
    publishers = dict(zip(*(rows[name].to_pylist() for name in ("row_id", "source")), strict=True))
    examples = _examples(searches, features, publishers, calibrating, seed)
    pools = _pool_examples(recorded_trials(rows, order="none"), features, calibrating)
    ran = examples.genuine & ~np.isnan(examples.outcome)
    failed = examples.failed[examples.genuine]
    knots, share_below = _shapes(examples.outcome[ran])
    counts = np.bincount(_classes(examples.outcome[ran]), minlength=_CLASSES) + 0.5
    known, reads = set(features.vocabulary), [read for _, read in texts]
    sources = Counter(rows["source"].to_pylist())
    tie_scaling, failure_scaling, order_scale = _calibration(examples, pools, seed)
    header = Header(
        languages=tuple(sorted({trial.query.candidate.language for _, trial in trials})),
        vocabulary=features.vocabulary,
        knots=knots,
        share_below=share_below,
        class_shares=tuple((counts / counts.sum()).tolist()),
        failure_share=(float(failed.sum()) + 0.5) / (failed.size + 1.0),
        failure_causes=_failure_causes(trial for _, trial in trials),
        tie_scaling=tie_scaling,
        failure_scaling=failure_scaling,
        order_scale=order_scale,
        usual_coverage=float(np.quantile([read.coverage(known) for read in reads], 0.05)),
        usual_words=int(np.quantile([len(known & read.words.keys()) for read in reads], 0.05)),
        trained_on=", ".join(f"{name} ({count})" for name, count in sorted(sources.items())),
    )
    trees = _grow(examples, pools, seed, all_problems=True)
    return SourceModel(header, {name: tree.model_to_string() for name, tree in trees.items()})


def check_publishable(rows: Rows) -> None:
    """Raise SetupError for rows that no published model may learn from."""
    if UNSTATED in set(rows["licence"].to_pylist()):
        raise SetupError(
            "some rows state no licence: leave them out of a model that ships "
            "(filter the rows on their licence)"
        )
    barred = {
        source for source in set(rows["source"].to_pylist()) if source.startswith(EVALUATION_ONLY)
    }
    if barred:
        raise SetupError(
            f"rows of {', '.join(sorted(barred))} are for evaluation only: "
            "leave llm_sol_mi350x out of a model that ships"
        )


def _is_text(trial: Trial) -> bool:
    """True for a written kernel; a template's configuration has no text of its own."""
    return bool(trial.query.candidate.source) and trial.query.candidate.parameters is None


# ---------------------------------------------------------------------------------------- examples


def _examples(
    searches: Sequence[Trials],
    features: SourceFeatures,
    publishers: Mapping[str, str],
    calibrating: set[str],
    seed: int,
) -> _Examples:
    """Each trial at its own place, and again as if it had come earlier in its search."""
    rng = np.random.default_rng(seed)
    matrices: list[NDArray[np.float32]] = []
    columns: list[tuple[float, bool, bool, bool, str]] = []
    for search in searches:
        trials = [trial for trial in search.trials if _is_text(trial)]
        history = SearchHistory()
        earlier: defaultdict[int, list[Trial]] = defaultdict(list)
        for number, trial in enumerate(trials):
            for at in rng.integers(0, number, size=_EARLIER) if number else ():
                earlier[int(at)].append(trial)
        for number, trial in enumerate(trials):
            for observation in trial.news:
                history.add(observation, trial.query.problem.entry)
            moved = [trial, *earlier[number]]
            queries = [
                trial.query.model_copy(update={"candidate": other.query.candidate})
                for other in moved
            ]
            matrices.append(features.matrix(queries, history).astype(np.float32))
            for other in moved:
                columns.append(
                    (
                        _log2_speedup(other) - trial.query.anchor_log2_speedup,
                        not other.ok,
                        other is trial,
                        search.group in calibrating,
                        publishers[other.row_id],
                    )
                )
    outcome, failed, genuine, held_out, publisher = map(np.array, zip(*columns, strict=True))
    weight = np.where(genuine, 1.0, _EARLIER_WEIGHT)
    for name in np.unique(publisher):
        # The thousands of similar kernels of one publisher must not outweigh the others.
        own = publisher == name
        if not own.all():
            weight[own] *= min(1.0, _SOURCE_WEIGHT_LIMIT / max(float((own & genuine).sum()), 1.0))
    return _Examples(np.concatenate(matrices), outcome, failed, weight, genuine, held_out)


def _pool_examples(
    pools: Iterable[Trials], features: SourceFeatures, calibrating: set[str]
) -> _PoolExamples:
    """All texts of one problem and device as a pool of which nothing is measured."""
    matrices = [np.empty((0, 2 * len(features.static_columns) + 6), np.float32)]
    columns: list[tuple[float, float, bool]] = []
    for pool in pools:
        trials = [trial for trial in pool.trials if _is_text(trial)]
        log2_speedup = np.array([_log2_speedup(trial) for trial in trials])
        ran = ~np.isnan(log2_speedup)
        if ran.sum() < 2:
            continue
        speed = log2_speedup[ran]
        matrix = pool_rows(features, [trial.query for trial in trials])[ran]
        matrices.append(matrix.astype(np.float32))
        place = (speed.argsort().argsort() + 0.5) / speed.size - 0.5
        about_mean = np.clip(speed - speed.mean(), -2.0, 2.0)
        held_out = pool.group in calibrating
        columns += [(*at, held_out) for at in zip(place, about_mean, strict=True)]
    table = np.array(columns, dtype=np.float64).reshape(-1, 3)
    return _PoolExamples(np.concatenate(matrices), table[:, 0], table[:, 1], table[:, 2] > 0.0)


def _log2_speedup(trial: Trial) -> float:
    """Against the reference; nan without a time."""
    if trial.log2_speedup is None:
        return math.nan
    return trial.log2_speedup + trial.query.anchor_log2_speedup


# ------------------------------------------------------------------------------------------- trees


def _grow(
    examples: _Examples, pools: _PoolExamples, seed: int, *, all_problems: bool
) -> dict[str, lightgbm.Booster]:
    """Grow the trees of each name, on all problems or on those that do not calibrate."""
    # Slow to import, and needed only where trees are grown.
    import lightgbm

    used = all_problems | ~examples.held_out
    ran = used & ~np.isnan(examples.outcome)
    ranked = all_problems | ~pools.held_out
    # Failure depends little on the place in the search: more of the same would only overfit.
    failure_weight = np.where(examples.genuine, 1.0, _EARLIER_WEIGHT) * examples.weight
    data = {
        "density": (examples.rows[ran], _classes(examples.outcome[ran]), examples.weight[ran]),
        "failure": (examples.rows[used], examples.failed[used], failure_weight[used]),
        "order": (pools.rows[ranked], pools.place[ranked], np.ones(ranked.sum())),
    }
    if not ranked.any():
        data["order"] = (np.zeros((2, pools.rows.shape[1]), np.float32), np.zeros(2), np.ones(2))
    return {
        name: lightgbm.train(
            {**_GROWING, **_SETTINGS[name], "seed": seed},
            lightgbm.Dataset(rows, target.astype(np.float64), weight=weight),
            _ROUNDS[name],
        )
        for name, (rows, target, weight) in data.items()
    }


def _classes(outcome: Floats) -> NDArray[np.intp]:
    return np.searchsorted(CLASS_EDGES, outcome, side="right")


def _calibration(
    examples: _Examples, pools: _PoolExamples, seed: int
) -> tuple[tuple[float, float], tuple[float, float], float]:
    """Scalings of ties and failures and the order's scale, on problems the trees did not see."""
    judged = examples.held_out & examples.genuine
    ran = judged & ~np.isnan(examples.outcome)
    if ran.sum() < 50 or (~examples.held_out & ~np.isnan(examples.outcome)).sum() < 200:
        return (1.0, 0.0), (1.0, 0.0), 1.0
    trees = _grow(examples, pools, seed, all_problems=False)

    def predict(name: str, rows: NDArray[np.float32]) -> Floats:
        return np.asarray(trees[name].predict(rows, num_threads=1))

    tied = predict("density", examples.rows[ran])[:, GROUP_OF_CLASS == 1].sum(axis=1)
    ties = _fitted_scaling(tied, GROUP_OF_CLASS[_classes(examples.outcome[ran])] == 1)
    failures = _fitted_scaling(predict("failure", examples.rows[judged]), examples.failed[judged])
    scale = 1.0
    if pools.held_out.sum() >= 20:
        score = predict("order", pools.rows[pools.held_out])
        score = score - score.mean()
        scale = float(score @ pools.about_mean[pools.held_out] / max(float(score @ score), 1e-9))
    return ties, failures, max(scale, 0.1)


def _fitted_scaling(claimed: Floats, happened: NDArray[np.bool_]) -> tuple[float, float]:
    """Slope and offset in log odds under which the claims are likeliest, drawn towards (1, 0)."""
    p = np.clip(claimed, 1e-6, 1.0 - 1e-6)
    odds = np.log(p / (1.0 - p))

    def loss(scaling: Floats) -> float:
        z = scaling[0] * odds + scaling[1]
        surprise = np.logaddexp(0.0, np.where(happened, -z, z)).sum()
        return float(surprise + 5.0 * ((scaling[0] - 1.0) ** 2 + scaling[1] ** 2))

    slope, offset = minimize(loss, np.array([1.0, 0.0]), method="BFGS").x
    return max(round(float(slope), 4), 0.1), round(float(offset), 4)


# ------------------------------------------------------------------------------------------ shapes


def _shapes(outcomes: Floats) -> tuple[tuple[float, ...], tuple[tuple[float, ...], ...]]:
    """Knots of all densities, and for each class the share of it below each knot."""
    edges = np.concatenate(([-_WIDEST_LOG2], CLASS_EDGES, [_WIDEST_LOG2]))
    clipped = np.clip(outcomes, edges[0], edges[-1])
    points: list[Floats] = []
    for low, high in pairwise(edges):
        inside = clipped[(clipped >= low) & (clipped < high)]
        if inside.size >= 16:
            points.append(np.quantile(inside, _LEVELS))
        elif low == edges[0] or high == edges[-1]:
            # Few outcomes so far out: most of them lie near the edge.
            reach = np.array([0.1, 0.25, 0.4, 0.6, 0.9, 1.3, 2.0])
            points.append(low + reach if high == edges[-1] else np.sort(high - reach))
        else:
            points.append(low + (high - low) * _LEVELS)
    knots = np.unique(np.concatenate((edges, *points)))
    share_below = []
    for (low, high), inner in zip(pairwise(edges), points, strict=True):
        x = np.concatenate(([low], inner, [high]))
        level = np.concatenate(([0.0], _LEVELS, [1.0]))
        share_below.append(tuple(np.interp(knots, x, level).round(5).tolist()))
    return tuple(knots.tolist()), tuple(share_below)


def _failure_causes(trials: Iterable[Trial]) -> dict[FailureKind, float]:
    """Share of each kind among the failures."""
    kinds = Counter(
        trial.observation.measurement.failure.kind
        for trial in trials
        if trial.observation is not None and trial.observation.measurement.failure is not None
    )
    if not kinds:
        return {FailureKind.WRONG_RESULT: 1.0}
    return {kind: count / kinds.total() for kind, count in sorted(kinds.items())}
