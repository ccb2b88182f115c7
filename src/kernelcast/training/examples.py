"""What the trees of the source model learn from: trials along searches, and whole pools."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from kernelcast.dataset import Trial, Trials
from kernelcast.forecasters._features import SearchHistory, SourceFeatures
from kernelcast.forecasters._pool import Pool

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Rows32 = NDArray[np.float32]
Names = NDArray[np.str_]

_EARLIER = 2  # examples of a trial as if it had come earlier in its search
_EARLIER_WEIGHT = 0.4
_POOLED_WEIGHT = 0.8  # of a trial of which nothing but the reference is known
_SOURCE_WEIGHT_LIMIT = 2000.0
_HELD_OUT = 4  # parts of the sources, or of the problems of which one part calibrates
_FEWEST_OF_A_SOURCE = 100  # examples of a source that counts as one
_FEWEST_SOURCES = 3
_FAR_LOG2 = 2.0  # speedups in a pool count up to here, beyond its mean
_NEAR_PRECISION = 0.15

MANY = 200
"""Examples of a source without a failure that publishes none, and those that weigh one fully."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Rows that the trees of outcomes read; `outcome` is nan without a speedup.

    `source` is where an example was published, `writer` the source and the model that wrote it.
    `genuine` marks trials at their own place in the search.
    """

    rows: Rows32
    outcome: Floats
    failed: Flags
    weight: Floats
    genuine: Flags
    group: Names
    source: Names
    writer: Names

    @classmethod
    def of(
        cls,
        searches: Sequence[Trials],
        pools: Sequence[Trials],
        features: SourceFeatures,
        writers: Mapping[str, tuple[str, str]],
        seed: int,
    ) -> Examples:
        """Each trial at its own place, as if it had come earlier, and as if nothing were measured.

        `writers` has the source and the writer of each row.
        """
        rng = np.random.default_rng(seed)
        matrices: list[Rows32] = []
        columns: list[tuple[float, bool, float, str, str, str]] = []
        for search in searches:
            for rows, moved in _moved(search, features, rng):
                matrices.append(rows)
                for other, outcome, weight in moved:
                    written = (search.group, *writers[other.row_id])
                    columns.append((outcome, not other.ok, weight, *written))
        for pool in pools:
            trials = written_trials(pool)
            if not trials:
                continue
            queries = [trial.query for trial in trials]
            matrices.append(features.matrix(queries, SearchHistory()).astype(np.float32))
            for trial in trials:
                written = (pool.group, *writers[trial.row_id])
                columns.append((_log2_speedup(trial), not trial.ok, _POOLED_WEIGHT, *written))
        outcomes, failed, weights, *names = map(np.array, zip(*columns, strict=True))
        genuine = weights == 1.0
        group, source, writer = names
        weights = weights * _balanced(source, genuine)
        all_rows = np.concatenate(matrices)
        return cls(all_rows, outcomes, failed, weights, genuine, group, source, writer)

    @property
    def ran(self) -> Flags:
        """Examples with a speedup."""
        return ~np.isnan(self.outcome)

    @cached_property
    def tells_failures(self) -> Flags:
        """Examples of sources that publish failures too."""
        winners = [
            name
            for name in np.unique(self.source)
            if (own := self.genuine & (self.source == name)).sum() >= MANY
            and not self.failed[own].any()
        ]
        return ~np.isin(self.source, winners)

    def held_out(self, seed: int) -> list[Flags]:
        """Parts on which to judge trees that are grown on the rest."""
        rng = np.random.default_rng(seed)
        counts = Counter(self.source[self.genuine].tolist())
        large = sorted(name for name, count in counts.items() if count >= _FEWEST_OF_A_SOURCE)
        if len(large) >= _FEWEST_SOURCES:
            parts = np.array_split(rng.permutation(large), min(_HELD_OUT, len(large)))
            return [np.isin(self.source, part) for part in parts]
        groups = np.unique(self.group)
        return [np.isin(self.group, rng.permutation(groups)[: len(groups) // _HELD_OUT])]


@dataclass(frozen=True, eq=False)
class PoolExamples:
    """Rows that the trees of the order read, of kernels that ran beside others of their pool.

    `place` is the rank in the pool, from -0.5 (the slowest) to 0.5. `log2_speedup` and `near` (the
    share of the others that are near) are those beyond the pool's mean.
    """

    rows: Rows32
    place: Floats
    log2_speedup: Floats
    near: Floats
    weight: Floats
    group: Names
    source: Names

    @classmethod
    def of(
        cls,
        pools: Sequence[Trials],
        features: SourceFeatures,
        writers: Mapping[str, tuple[str, str]],
    ) -> PoolExamples:
        """All texts that one source has of a problem and device, as if nothing were measured."""
        matrices: list[Rows32] = []
        columns: list[tuple[float, float, float, str, str]] = []
        for pool in pools:
            by_source: defaultdict[str, list[Trial]] = defaultdict(list)
            for trial in written_trials(pool):
                by_source[writers[trial.row_id][0]].append(trial)
            for source, trials in by_source.items():
                speeds = np.array([_log2_speedup(trial) for trial in trials])
                ran = ~np.isnan(speeds)
                if ran.sum() < 2:
                    continue
                members = Pool.of([trial.query for trial in trials])
                places = [members.place(trial.query.candidate) for trial in trials]
                rows = np.concatenate(list(members.rows(features)))[places]
                matrices.append(rows[ran].astype(np.float32))
                ranks = (rankdata(speeds[ran]) - 0.5) / ran.sum() - 0.5
                beyond = np.clip(speeds[ran] - speeds[ran].mean(), -_FAR_LOG2, _FAR_LOG2)
                near = rows[ran, -1] - rows[ran, -1].mean()
                numbers = (values.tolist() for values in (ranks, beyond, near))
                columns += [(*one, pool.group, source) for one in zip(*numbers, strict=True)]
        if not columns:
            none, unnamed = np.zeros(0), np.zeros(0, dtype=np.str_)
            no_rows = np.zeros((0, len(Pool.columns(features))), dtype=np.float32)
            return cls(no_rows, none, none, none, none, unnamed, unnamed)
        place, log2_speedup, centred, groups, sources = map(np.array, zip(*columns, strict=True))
        weights = _balanced(sources, np.ones(len(sources), dtype=bool))
        all_rows = np.concatenate(matrices)
        return cls(all_rows, place, log2_speedup, centred, weights, groups, sources)

    def held_out(self, seed: int) -> list[Flags]:
        """Each source by itself; of a single one, a few parts of its problems."""
        sources, groups = np.unique(self.source), np.unique(self.group)
        if len(sources) > 1:
            return [self.source == name for name in sources]
        parts = np.array_split(np.random.default_rng(seed).permutation(groups), _HELD_OUT)
        return [np.isin(self.group, part) for part in parts if len(part)]

    def slope_on_near(self, values: Floats, used: Flags | None = None) -> float:
        """How far `values` rise with `near`; 0 if nothing tells, or if they fall."""
        weight = self.weight if used is None else self.weight * used
        slope = weight @ (self.near * values) / (weight @ self.near**2 + _NEAR_PRECISION)
        return max(float(slope), 0.0)


def written_trials(trials: Trials) -> list[Trial]:
    """Those of written kernels; a template's configuration has no text of its own."""
    return [
        trial
        for trial in trials.trials
        if trial.query.candidate.source and trial.query.candidate.parameters is None
    ]


def _moved(
    search: Trials, features: SourceFeatures, rng: np.random.Generator
) -> Iterator[tuple[Rows32, list[tuple[Trial, float, float]]]]:
    """Yield rows at each step of a search: the step's trial, and later ones as if they came then.

    Each row comes with its trial, the outcome against the step's anchor, and its weight.
    """
    trials = written_trials(search)
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
            trial.query.model_copy(update={"candidate": other.query.candidate}) for other in moved
        ]
        rows = features.matrix(queries, history).astype(np.float32)
        anchor_log2 = trial.query.anchor_log2_speedup
        yield (
            rows,
            [
                (
                    other,
                    _log2_speedup(other) - anchor_log2,
                    1.0 if other is trial else _EARLIER_WEIGHT,
                )
                for other in moved
            ],
        )


def _log2_speedup(trial: Trial) -> float:
    """Against the reference; nan without a time."""
    log2_speedup = trial.log2_over_reference
    return math.nan if log2_speedup is None else log2_speedup


def _balanced(source: Names, counted: Flags) -> Floats:
    """Weights by which thousands of similar kernels of one source do not outweigh the others."""
    weight = np.ones(len(source))
    for name in np.unique(source):
        own = source == name
        if not own.all():
            weight[own] = min(1.0, _SOURCE_WEIGHT_LIMIT / max(float((own & counted).sum()), 1.0))
    return weight
