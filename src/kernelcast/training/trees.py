"""Training of the source model from rows of measured kernels.

The same function trains the model that ships, users' models and the models of a bench's folds.

Sources differ more than kernels do: one publishes winners only, another the attempts of a small
model, of which four in five fail. The trees therefore start from what is usual in each row's source
and learn what sets a kernel apart within it. How far that carries is learnt on sources that the
trees have not seen (or on problems, if there are too few sources); then the trees are grown on all
rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import logit

from kernelcast.dataset import Rows, Trial, recorded_trials
from kernelcast.errors import SetupError
from kernelcast.forecasters._experience import (
    FASTER,
    FAULTY,
    SIGNS_OF_FAILURE,
    SIGNS_OF_OUTCOME,
    SLOWER,
    Signs,
    design,
    others_happened,
    sign_values,
)
from kernelcast.forecasters._features import SourceFeatures, candidate_digest, choose_vocabulary
from kernelcast.forecasters._regression import mode
from kernelcast.forecasters._source import (
    CLASS_EDGES,
    GROUP_OF_CLASS,
    Header,
    SourceModel,
    group_odds,
    group_scores,
    shares_at,
)
from kernelcast.training.examples import MANY, Examples, PoolExamples, written_trials
from kernelcast.types import FailureKind

if TYPE_CHECKING:
    import lightgbm

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_VOCABULARY = 240
_CLASSES = len(CLASS_EDGES) + 1
_LEVELS = np.arange(1, 8) / 8.0  # quantiles kept within a class
_WIDEST_LOG2 = 7.0
_NOT_GENUINE_WEIGHT = 0.4  # on failure
_SHARE_WEIGHT = 5.0  # examples that the mean of all sources counts for in one source
_FLATTEST, _STEEPEST = 0.05, 1.5
_LEAST_SPREAD = 0.5
_FEWEST = 200  # examples from which trees are grown for a part
_SIGN_PRECISION, _NO_INTERCEPT = 30.0, 1e6
_SCORE_PRECISION = 3.0  # of the weight of the trees' score, about 1
_LEAST_SCALE = 1e-3
_ORDER_PRECISION = 1.0  # of the weight of the order trees, about 0

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
    "order": {"objective": "regression", "learning_rate": 0.03, "num_leaves": 12},
}
_ROUNDS = {"density": 120, "failure": 200, "order": 300}


def train_source_model(rows: Rows, seed: int = 0) -> SourceModel:
    """Train the trees and their calibration on all rows that have a kernel's text.

    Args:
        rows: Measured kernels; configurations of a template are left out.
        seed: Seed of every random choice; the same rows and seed give the same model.

    Raises:
        SetupError: No row has a kernel's text.
    """
    searches = list(recorded_trials(rows, order="shuffled", seed=seed))
    trials = [(search.group, trial) for search in searches for trial in written_trials(search)]
    if not trials:
        raise SetupError("no row has a kernel's text: import rows with `kernelcast data import`")
    texts = [(group, candidate_digest(trial.query)) for group, trial in trials]
    features = SourceFeatures(choose_vocabulary(texts, _VOCABULARY))
    columns = (rows[name].to_pylist() for name in ("row_id", "source", "model"))
    writers = {
        row: (source, f"{source}, {model}") for row, source, model in zip(*columns, strict=True)
    }
    pools = list(recorded_trials(rows, "reference", order="none", seed=seed))
    examples = Examples.of(searches, pools, features, writers, seed)
    in_pools = PoolExamples.of(pools, features, writers)
    ran = examples.genuine & examples.ran
    knots, share_below = _shapes(examples.outcome[ran])
    known, reads = set(features.vocabulary), [read for _, read in texts]
    sources = Counter(rows["source"].to_pylist())
    usual = _Usual.of(examples)
    unseen = _Unseen.of(examples, usual, seed)
    header = Header(
        languages=tuple(sorted({trial.query.candidate.language for _, trial in trials})),
        vocabulary=features.vocabulary,
        knots=knots,
        share_below=share_below,
        class_shares=tuple(usual.class_shares.tolist()),
        density_slope=unseen.density_slope(examples, usual),
        near_log2=round(in_pools.slope_on_near(in_pools.log2_speedup), 4),
        order_scale=_order_scale(in_pools, seed),
        failure_odds=usual.failure_odds,
        failure_signs=unseen.failure_signs(examples, usual, features.columns),
        outcome_signs=unseen.outcome_signs(examples, usual, features.columns),
        failure_causes=_failure_causes(trial for _, trial in trials),
        usual_coverage=float(np.quantile([read.coverage(known) for read in reads], 0.05)),
        usual_words=int(np.quantile([len(known & read.words.keys()) for read in reads], 0.05)),
        trained_on=", ".join(f"{name} ({count})" for name, count in sorted(sources.items())),
    )
    trees = _grow(examples, usual, seed)
    if (order := _grow_order(in_pools, seed)) is not None:
        trees["order"] = order
    return SourceModel(header, {name: tree.model_to_string() for name, tree in trees.items()})


@dataclass(frozen=True, eq=False)
class _Usual:
    """What is usual: over all sources and writers, and in those of each example."""

    class_shares: Floats
    class_shares_here: Floats
    failure_odds: tuple[float, float]
    """Mean and standard deviation over the writers."""
    failure_odds_here: Floats

    @classmethod
    def of(cls, examples: Examples) -> _Usual:
        """Count outcomes by source and failures by writer."""
        ran = examples.genuine & examples.ran
        classes = _classes(examples.outcome)
        by_source = {
            name: np.bincount(classes[ran & (examples.source == name)], minlength=_CLASSES)
            for name in np.unique(examples.source)
        }
        # A source counts by its size up to a limit.
        shares = sum(
            (counts + 0.5) / (counts.sum() + 0.5 * _CLASSES) * min(counts.sum(), MANY)
            for counts in by_source.values()
        )
        shares = shares / shares.sum()
        shares_here = {
            name: (counts + _SHARE_WEIGHT * shares) / (counts.sum() + _SHARE_WEIGHT)
            for name, counts in by_source.items()
        }
        telling = examples.genuine & examples.tells_failures
        sizes, odds = {}, {}
        for name in np.unique(examples.writer):
            failed = examples.failed[telling & (examples.writer == name)]
            sizes[name] = min(failed.size, MANY)
            odds[name] = float(logit((failed.sum() + 0.5) / (failed.size + 1.0)))
        weights = np.array(list(sizes.values())) + 1e-9
        values = np.array(list(odds.values()))
        mean = float(np.average(values, weights=weights))
        spread = math.sqrt(float(np.average((values - mean) ** 2, weights=weights)))
        return cls(
            shares,
            np.stack([shares_here[name] for name in examples.source.tolist()]),
            (mean, max(spread, _LEAST_SPREAD)),
            np.array([odds[name] for name in examples.writer.tolist()]),
        )


# ------------------------------------------------------------------------------------------- trees


def _grow(
    examples: Examples, usual: _Usual, seed: int, used: Flags | None = None
) -> dict[str, lightgbm.Booster]:
    """Grow the trees of outcomes, on all examples or on those that are used."""
    used = np.ones(len(examples.rows), dtype=bool) if used is None else used
    ran, telling = used & examples.ran, used & examples.tells_failures
    shares = np.log(usual.class_shares_here[ran])
    # Failure depends little on the place in the search: more of the same would only overfit.
    weight = np.where(examples.genuine, 1.0, _NOT_GENUINE_WEIGHT) * examples.weight
    classes, odds = _classes(examples.outcome[ran]), usual.failure_odds_here[telling]
    return {
        "density": _trees(
            "density", examples.rows[ran], classes, examples.weight[ran], shares, seed
        ),
        "failure": _trees(
            "failure", examples.rows[telling], examples.failed[telling], weight[telling], odds, seed
        ),
    }


def _grow_order(
    pools: PoolExamples, seed: int, used: Flags | None = None
) -> lightgbm.Booster | None:
    """Grow the trees of the order of pools, beyond what nearness tells; None without a pool."""
    used = np.ones(len(pools.rows), dtype=bool) if used is None else used
    if not used.any():
        return None
    start = pools.slope_on_near(pools.place, used) * pools.near[used]
    return _trees("order", pools.rows[used], pools.place[used], pools.weight[used], start, seed)


def _trees(
    name: str,
    rows: NDArray[np.float32],
    target: NDArray[Any],
    weight: Floats,
    start: Floats,
    seed: int,
) -> lightgbm.Booster:
    # Slow to import, and needed only where trees are grown.
    import lightgbm

    data = lightgbm.Dataset(rows, target.astype(np.float64), weight=weight, init_score=start)
    return lightgbm.train({**_GROWING, **_SETTINGS[name], "seed": seed}, data, _ROUNDS[name])


def _order_scale(pools: PoolExamples, seed: int) -> float:
    """Octaves for one unit of the order trees' score, for pools that they have not seen."""
    scores = np.full(len(pools.rows), np.nan)
    for own in pools.held_out(seed):
        trees = _grow_order(pools, seed, ~own)
        if trees is not None:
            scores[own] = np.asarray(trees.predict(pools.rows[own], raw_score=True))
    judged = ~np.isnan(scores)
    if not judged.any():
        return 1.0
    slope = pools.slope_on_near(pools.log2_speedup, judged)
    beyond = (pools.log2_speedup - slope * pools.near)[judged]
    scores, weight = scores[judged], pools.weight[judged]
    scale = float(weight @ (scores * beyond)) / (float(weight @ scores**2) + _ORDER_PRECISION)
    return round(max(scale, 0.0), 4)


def _classes(outcome: Floats) -> NDArray[np.intp]:
    return np.searchsorted(CLASS_EDGES, outcome, side="right")


@dataclass(frozen=True, eq=False)
class _Unseen:
    """Scores of examples by trees that have not seen their source, or their problem."""

    judged: Flags
    """The examples that have scores."""
    class_scores: Floats
    failure_scores: Floats

    @classmethod
    def of(cls, examples: Examples, usual: _Usual, seed: int) -> _Unseen:
        """Grow trees on all but one part, for each part, and ask them about it."""
        count = len(examples.rows)
        judged = np.zeros(count, dtype=bool)
        class_scores, failure_scores = np.zeros((count, _CLASSES)), np.zeros(count)
        for part in examples.held_out(seed):
            used, asked = examples.genuine & ~part, examples.genuine & part
            if min((used & examples.ran).sum(), (used & examples.tells_failures).sum()) < _FEWEST:
                continue
            trees = _grow(examples, usual, seed, used)
            rows = examples.rows[asked]
            class_scores[asked] = np.asarray(trees["density"].predict(rows, raw_score=True))
            failure_scores[asked] = np.asarray(trees["failure"].predict(rows, raw_score=True))
            judged |= asked
        return cls(judged, class_scores, failure_scores)

    def density_slope(self, examples: Examples, usual: _Usual) -> float:
        """The factor on the scores of the classes under which the outcomes are likeliest."""
        ran = self.judged & examples.ran
        if not ran.any():
            return 1.0
        happened = _classes(examples.outcome[ran])
        weight = examples.weight[ran]

        def loss(slope: float) -> float:
            chances = shares_at(usual.class_shares_here[ran], slope * self.class_scores[ran])
            return -float(weight @ np.log(chances[np.arange(len(happened)), happened]))

        best = minimize_scalar(loss, bounds=(_FLATTEST, _STEEPEST), method="bounded")
        return round(float(best.x), 4)

    def failure_signs(self, examples: Examples, usual: _Usual, columns: Sequence[str]) -> Signs:
        """The regression of failure, beyond what is usual of the writer."""
        judged = self.judged & examples.tells_failures
        odds = usual.failure_odds_here[judged][:, None]
        scores, failed = self.failure_scores[judged][:, None], examples.failed[judged]
        return _signs(SIGNS_OF_FAILURE, columns, examples.rows[judged], scores, odds, failed)

    def outcome_signs(self, examples: Examples, usual: _Usual, columns: Sequence[str]) -> Signs:
        """The regression of slower and faster against a tie; its intercepts are the usual ones."""
        judged = self.judged & examples.ran
        group = GROUP_OF_CLASS[_classes(examples.outcome[judged])]
        outcome = np.select([group == SLOWER, group == FASTER], [1, 2], 0)
        scores = group_scores(usual.class_shares_here[judged], self.class_scores[judged])
        odds = group_odds(usual.class_shares_here[judged])
        signs = _signs(SIGNS_OF_OUTCOME, columns, examples.rows[judged], scores, odds, outcome)
        intercepts = group_odds(usual.class_shares[None])[0].tolist()
        weights = [(own, *row[1:]) for own, row in zip(intercepts, signs.weights, strict=True)]
        return signs.model_copy(update={"weights": tuple(weights)})


def _signs(
    names: Sequence[str],
    columns: Sequence[str],
    rows: NDArray[np.float32],
    scores: Floats,
    odds: Floats,
    outcomes: NDArray[Any],
) -> Signs:
    """Fit a regression to all judged examples, beyond the odds that are usual there."""
    values = sign_values(rows, [columns.index(name) for name in names])
    known = np.isfinite(values).any(axis=0)
    centres, scales = np.zeros(len(names)), np.ones(len(names))
    centres[known] = np.nanmean(values[:, known], axis=0)
    scales[known] = np.nanstd(values[:, known], axis=0) + _LEAST_SCALE
    matrix = design(scores, values, centres, scales)
    precision = np.full(matrix.shape[1], _SIGN_PRECISION)
    precision[0] = _NO_INTERCEPT
    precision[1 : 1 + scores.shape[1]] = _SCORE_PRECISION
    start = np.zeros((odds.shape[1], matrix.shape[1]))
    start[:, 1 : 1 + scores.shape[1]] = np.eye(scores.shape[1])
    # A fault of a text is believed before any example shows that it is one.
    start[0, 1 + scores.shape[1] :] = [name.startswith(FAULTY) for name in names]
    happened = others_happened(outcomes.astype(np.intp), len(start))
    weights = mode(matrix, happened, start, precision, offsets=odds)
    return Signs(
        columns=tuple(names),
        centres=_rounded(centres),
        scales=_rounded(scales),
        weights=tuple(_rounded(row) for row in weights),
    )


def _rounded(values: Floats) -> tuple[float, ...]:
    return tuple(np.round(values, 5).tolist())


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
