"""Training of the source model: rows of measured kernels in, one compressed file and a card out.

The same function trains the model that ships and the models of a bench's folds. Calibration is
learnt on problems that the trees it corrects have not seen; then the trees are grown on all rows.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from kernelcast.dataset import UNSTATED, Rows, problem_group
from kernelcast.errors import SetupError
from kernelcast.forecasters._features import (
    SearchHistory,
    SourceFeatures,
    choose_vocabulary,
    digest,
)
from kernelcast.forecasters._source import (
    CLASS_EDGES,
    GROUP_OF_CLASS,
    SHIPPED,
    Header,
    SourceModel,
    pool_rows,
)
from kernelcast.training._card import model_card
from kernelcast.training._lessons import Anchor, Episode, Step, episodes, moments
from kernelcast.training._trials import cross_examine
from kernelcast.types import FailureKind, Kernel, Query

if TYPE_CHECKING:
    import lightgbm

Floats = NDArray[np.float64]

EVALUATION_ONLY = ("sol-execbench-rocm",)
"""Sources that no shipped model may learn from."""

_VOCABULARY = 240
_CLASSES = len(CLASS_EDGES) + 1
_LEVELS = np.arange(1, 8) / 8.0  # quantiles kept within a class
_WIDEST_LOG2 = 7.0
_EARLIER = 2  # lessons a step gives as if it had come earlier in its search
_EARLIER_WEIGHT, _BLIND_WEIGHT, _BLIND_SHARE = 0.4, 0.5, 0.1
_SOURCE_WEIGHT_LIMIT = 2000.0
_HELD_OUT = 4  # every fourth problem calibrates
_LARGEST_BYTES = 3_000_000

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
_DENSITY = {
    **_GROWING,
    "objective": "multiclass",
    "num_class": _CLASSES,
    "learning_rate": 0.05,
    "num_leaves": 8,
}
_FAILURE = {**_GROWING, "objective": "binary", "learning_rate": 0.03, "num_leaves": 12}
_ORDER = {
    **_GROWING,
    "objective": "regression",
    "learning_rate": 0.03,
    "num_leaves": 16,
    "min_data_in_leaf": 15,
    "lambda_l2": 5.0,
}
_DENSITY_ROUNDS, _FAILURE_ROUNDS, _ORDER_ROUNDS = 120, 200, 400


@dataclass(frozen=True, eq=False)
class _Lessons:
    """What the trees read, and what happened; `outcome` is nan where there is no speedup."""

    rows: NDArray[np.float32]
    outcome: Floats
    failed: NDArray[np.bool_]
    weight: Floats
    genuine: NDArray[np.bool_]
    held_out: NDArray[np.bool_]


class _Told(NamedTuple):
    outcome: float
    failed: bool
    weight: float
    genuine: bool
    held_out: bool
    source: str


@dataclass(frozen=True, eq=False)
class _Pools:
    """Pools of texts, with each kernel's place among those that ran, and its log2 speedup."""

    rows: NDArray[np.float32]
    place: Floats
    about_mean: Floats
    held_out: NDArray[np.bool_]


def train_source_model(
    rows: Rows, seed: int = 0, *, for_shipping: bool = False, trained_on: str = ""
) -> SourceModel:
    """Trees over all rows that have a text; what may not ship is refused `for_shipping`."""
    if for_shipping:
        _refuse_what_may_not_ship(rows)
    recorded = episodes(rows, seed)
    if not any(step.kernel.source for each in recorded for step in each.steps):
        raise SetupError("no row has a kernel's text: import rows with `kernelcast data import`")
    sources = dict(enumerate(rows["source"].to_pylist()))
    texts = [
        (problem_group(episode.problem.name), digest(step.kernel.source, step.kernel.language))
        for episode in recorded
        for step in episode.steps
        if step.kernel.source
    ]
    features = SourceFeatures(choose_vocabulary(texts, _VOCABULARY))
    names = sorted({problem_group(each.problem.name) for each in recorded})
    calibrating = set(np.random.default_rng(seed).permutation(names)[: len(names) // _HELD_OUT])
    lessons = _lessons(recorded, features, sources, calibrating, seed)
    pools = _pools(recorded, features, calibrating)
    ran = lessons.genuine & ~np.isnan(lessons.outcome)
    knots, share_below = _shapes(lessons.outcome[ran])
    classes = np.searchsorted(CLASS_EDGES, lessons.outcome[ran], side="right")
    known = set(features.vocabulary)
    coverage = [
        sum(n for word, n in read.words.items() if word in known) / read.words.total()
        for _, read in texts
    ]
    tie_scaling, failure_scaling, order_scale = _calibration(lessons, pools, seed)
    causes = Counter(
        step.failed for each in recorded for step in each.steps if step.failed is not None
    )
    header = Header(
        vocabulary=features.vocabulary,
        knots=knots,
        share_below=share_below,
        class_shares=tuple(
            ((np.bincount(classes, minlength=_CLASSES) + 0.5) / (classes.size + 0.5 * _CLASSES))
            .round(5)
            .tolist()
        ),
        failure_share=(float(lessons.failed[lessons.genuine].sum()) + 0.5)
        / (float(lessons.genuine.sum()) + 1.0),
        failure_causes=_shares(causes),
        tie_scaling=tie_scaling,
        failure_scaling=failure_scaling,
        order_scale=order_scale,
        usual_coverage=float(np.quantile(coverage, 0.05)),
        trained_on=trained_on,
    )
    every = np.ones(len(lessons.outcome), dtype=bool)
    grown = _grow(lessons, every, seed)
    grown["order"] = _grow_order(pools, np.ones(len(pools.place), dtype=bool), seed)
    return SourceModel(header, {name: tree.model_to_string() for name, tree in grown.items()})


def ship(rows: Rows, out_folder: Path, seed: int = 0, *, command: str = "kernelcast train") -> Path:
    """Train the model that ships, judge it on problems held out, and write it with its card."""
    model = train_source_model(rows, seed, for_shipping=True, trained_on=_described(rows))
    path = out_folder / SHIPPED
    model.save(path)
    if path.stat().st_size > _LARGEST_BYTES:
        raise SetupError(
            f"{path} has {path.stat().st_size} bytes, more than the 3 MB that may ship"
        )
    trials = cross_examine(rows, lambda part: train_source_model(part, seed), seed=seed)
    (out_folder / "card.md").write_text(model_card(rows, trials, path, seed, command))
    return path


def _described(rows: Rows) -> str:
    counts = Counter(rows["source"].to_pylist())
    return ", ".join(f"{source} ({count})" for source, count in sorted(counts.items()))


def _refuse_what_may_not_ship(rows: Rows) -> None:
    licences = set(rows["licence"].to_pylist())
    if UNSTATED in licences:
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


# ---------------------------------------------------------------------------------- what is learnt


def _lessons(
    recorded: Sequence[Episode],
    features: SourceFeatures,
    sources: dict[int, str],
    calibrating: set[str],
    seed: int,
) -> _Lessons:
    """Each fresh step as it came; again as if it had come earlier; and some without their text."""
    rng = np.random.default_rng(seed)
    matrices: list[NDArray[np.float32]] = []
    told: list[_Told] = []
    for episode in recorded:
        held_out = problem_group(episode.problem.name) in calibrating
        history = SearchHistory()
        first = 0 if episode.start else 1
        earlier: defaultdict[int, list[Step]] = defaultdict(list)
        for number, step in enumerate(episode.steps):
            if step.fresh and number > first:
                for moment in rng.integers(first, number, size=_EARLIER):
                    earlier[int(moment)].append(step)
        for number, anchor, news in moments(episode):
            for observation in news:
                history.add(observation)
            step = episode.steps[number]
            asked: list[tuple[Step, Kernel, float, bool]] = []
            if step.fresh and step.kernel.source:
                asked.append((step, step.kernel, 1.0, True))
                if rng.random() < _BLIND_SHARE:
                    blind = step.kernel.model_copy(update={"source": "", "id": "withheld"})
                    asked.append((step, blind, _BLIND_WEIGHT, False))
            asked += [
                (each, each.kernel, _EARLIER_WEIGHT, False)
                for each in earlier[number]
                if each.kernel.source
            ]
            if not asked:
                continue
            queries = [anchor.query(episode, kernel) for _, kernel, _, _ in asked]
            matrices.append(features.matrix(queries, history).astype(np.float32))
            for each, _, weight, genuine in asked:
                log2_speedup = each.measurement.log2_speedup if each.measurement else None
                outcome = math.nan if log2_speedup is None else log2_speedup - anchor.log2_speedup
                told.append(
                    _Told(
                        outcome,
                        each.failed is not None,
                        weight,
                        genuine,
                        held_out,
                        sources[each.row],
                    )
                )
    source_of = np.array([each.source for each in told])
    weights = np.array([each.weight for each in told])
    as_it_came = np.array([each.genuine for each in told])
    for source in np.unique(source_of):
        # One publisher's thousands of alike kernels must not drown the others.
        mine = source_of == source
        if not mine.all():
            count = float((mine & as_it_came).sum())
            weights[mine] *= min(1.0, _SOURCE_WEIGHT_LIMIT / max(count, 1.0))
    return _Lessons(
        np.concatenate(matrices),
        np.array([each.outcome for each in told]),
        np.array([each.failed for each in told]),
        weights,
        as_it_came,
        np.array([each.held_out for each in told]),
    )


def _pools(recorded: Sequence[Episode], features: SourceFeatures, calibrating: set[str]) -> _Pools:
    """All texts of one problem and device as a pool of which nothing is known but the texts."""
    gathered: dict[tuple[str, str], dict[str, tuple[Query, list[float]]]] = {}
    for episode in recorded:
        pool = gathered.setdefault((episode.problem.name, episode.device.name), {})
        for step in episode.steps:
            if not step.kernel.source:
                continue
            query = Anchor(step.kernel, 0.0, 0.0).query(episode, step.kernel)
            _, known = pool.setdefault(step.kernel.id, (query, []))
            if step.measurement is not None and step.measurement.log2_speedup is not None:
                known.append(step.measurement.log2_speedup)
    matrices, place, about_mean, held_out = [], [], [], []
    for (problem, _), pool in gathered.items():
        ran = np.array([bool(known) for _, known in pool.values()])
        if ran.sum() < 2:
            continue
        speed = np.array([np.median(known) for _, known in pool.values() if known])
        matrix = pool_rows(features, [query for query, _ in pool.values()])[ran]
        matrices.append(matrix.astype(np.float32))
        place.append((speed.argsort().argsort() + 0.5) / speed.size - 0.5)
        about_mean.append(np.clip(speed - speed.mean(), -2.0, 2.0))
        held_out += [problem_group(problem) in calibrating] * speed.size
    if not matrices:
        width = 2 * len(features.static_columns) + 6
        return _Pools(np.empty((0, width), np.float32), np.empty(0), np.empty(0), np.empty(0, bool))
    return _Pools(
        np.concatenate(matrices),
        np.concatenate(place),
        np.concatenate(about_mean),
        np.array(held_out),
    )


# ----------------------------------------------------------------------------------------- growing


def _grow(lessons: _Lessons, used: NDArray[np.bool_], seed: int) -> dict[str, lightgbm.Booster]:
    # Slow to import, and needed only where trees are grown.
    import lightgbm

    ran = used & ~np.isnan(lessons.outcome)
    classes = np.searchsorted(CLASS_EDGES, lessons.outcome[ran], side="right")
    density = lightgbm.train(
        {**_DENSITY, "seed": seed},
        lightgbm.Dataset(lessons.rows[ran], classes, weight=lessons.weight[ran]),
        _DENSITY_ROUNDS,
    )
    # Whether a kernel runs depends little on when it came: more of the same would only overfit.
    fear = np.where(lessons.genuine, lessons.weight, _EARLIER_WEIGHT * lessons.weight)
    failure = lightgbm.train(
        {**_FAILURE, "seed": seed},
        lightgbm.Dataset(lessons.rows[used], lessons.failed[used].astype(int), weight=fear[used]),
        _FAILURE_ROUNDS,
    )
    return {"density": density, "failure": failure}


def _grow_order(pools: _Pools, used: NDArray[np.bool_], seed: int) -> lightgbm.Booster:
    import lightgbm

    rows, place = pools.rows[used], pools.place[used]
    if not len(place):
        rows, place = np.zeros((2, pools.rows.shape[1]), np.float32), np.zeros(2)
    return lightgbm.train({**_ORDER, "seed": seed}, lightgbm.Dataset(rows, place), _ORDER_ROUNDS)


def _calibration(
    lessons: _Lessons, pools: _Pools, seed: int
) -> tuple[tuple[float, float], tuple[float, float], float]:
    """Scalings of ties and failures and the order's scale, on problems the trees did not see."""
    plain = (1.0, 0.0)
    judged = lessons.held_out & lessons.genuine
    ran = judged & ~np.isnan(lessons.outcome)
    if ran.sum() < 50 or (~lessons.held_out & ~np.isnan(lessons.outcome)).sum() < 200:
        return plain, plain, 1.0
    grown = _grow(lessons, ~lessons.held_out, seed)
    claimed = np.asarray(grown["density"].predict(lessons.rows[ran], num_threads=1))
    outcome = np.searchsorted(CLASS_EDGES, lessons.outcome[ran], side="right")
    ties = _fitted_scaling(
        claimed[:, GROUP_OF_CLASS == 1].sum(axis=1), GROUP_OF_CLASS[outcome] == 1
    )
    feared = np.asarray(grown["failure"].predict(lessons.rows[judged], num_threads=1))
    failures = _fitted_scaling(feared, lessons.failed[judged])
    scale = 1.0
    if pools.held_out.sum() >= 20:
        order = _grow_order(pools, ~pools.held_out, seed)
        score = np.asarray(order.predict(pools.rows[pools.held_out], num_threads=1))
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


def _shares(causes: Counter[FailureKind]) -> dict[FailureKind, float]:
    total = sum(causes.values())
    if not total:
        return {FailureKind.WRONG_RESULT: 1.0}
    return {kind: count / total for kind, count in sorted(causes.items())}
