"""Forecasts of kernels written as free text, by trees trained beforehand on measured kernels.

`SourceModel` is what training leaves behind: LightGBM models as text, and a header of plain JSON.
`SourceForecaster` is the model at work in one run: it asks the trees about each candidate with all
that the run has measured, and corrects them by how they have fared in this run so far.

Outcomes are classes of log2 speedup against the anchor, with a tie band in the middle; a forecast
spreads each class as the training data does. Before anything but the start has been measured there
is only a pool of texts: its order then comes from a model of ranks within a pool.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import zstandard
from numpy.typing import NDArray

from kernelcast.distribution import Distribution
from kernelcast.errors import SetupError
from kernelcast.forecasters._features import (
    SearchHistory,
    SourceFeatures,
    digest,
    likenesses,
)
from kernelcast.types import FailureKind, Forecast, Observation, Query, Record, Spend

if TYPE_CHECKING:
    import lightgbm

Floats = NDArray[np.float64]

_FORMAT = 1
_HEADER, _TREES = "header", "trees"
SHIPPED = "model.json.zst"

# The tie band's edges are those of the default bins, so that no bin cuts through a class.
CLASS_EDGES = (
    -2.0,
    -1.0,
    math.log2(0.71),
    -0.2,
    math.log2(0.97),
    -0.012,
    0.012,
    math.log2(1.03),
    0.14,
    math.log2(1.41),
    1.0,
    2.0,
)
GROUP_OF_CLASS = np.repeat([0, 1, 2], (5, 3, 5))  # slower, tie, faster
_OWN_WEIGHT = 20.0  # measurements until the run's own record weighs as much as the trees
_LEAST_CHANCE = 1e-6
_WORDS_SHARED = 28  # 95% of the texts that the shipped trees read hold so many of their 240 words


class Header(Record):
    """What a model knows besides its trees."""

    format: int = _FORMAT
    vocabulary: tuple[str, ...]
    knots: tuple[float, ...]
    """Where the density changes, from the smallest to the largest outcome."""
    share_below: tuple[tuple[float, ...], ...]
    """For each class, how much of it lies below each knot."""
    class_shares: tuple[float, ...]
    failure_share: float
    failure_causes: Mapping[FailureKind, float]
    tie_scaling: tuple[float, float]
    """Slope and offset in log odds that make claimed ties come true as often as claimed."""
    failure_scaling: tuple[float, float]
    order_scale: float
    """Octaves of speedup for one unit of the order model's score."""
    usual_coverage: float
    """Share of a source's words that the vocabulary knew in all but the oddest training texts."""
    trained_on: str


@dataclass(frozen=True, eq=False)
class SourceModel:
    """Trees and header; frozen, shared by all forecasters of a process."""

    header: Header
    trees: Mapping[str, str]
    """LightGBM's own text of the models `density`, `failure` and `order`."""

    @classmethod
    def load(cls, path: Path | None = None) -> Self:
        """A model from a file, or the one that ships with kernelcast."""
        if path is None:
            return cls._shipped()
        try:
            return cls._decode(path.read_bytes())
        except OSError as error:
            raise SetupError(
                f"no source model at {path}: train one with `kernelcast train`"
            ) from error

    @classmethod
    @lru_cache(maxsize=1)
    def _shipped(cls) -> Self:
        file = resources.files("kernelcast.forecasters") / "shipped" / SHIPPED
        if not file.is_file():
            raise SetupError(
                "this install lacks its source model: reinstall, or `kernelcast train`"
            )
        return cls._decode(file.read_bytes())

    @classmethod
    def _decode(cls, data: bytes) -> Self:
        try:
            plain = json.loads(zstandard.ZstdDecompressor().decompress(data))
            header = Header.model_validate(plain[_HEADER])
            if header.format != _FORMAT:
                raise ValueError(f"format {header.format}, where this version reads {_FORMAT}")
            return cls(header, dict(plain[_TREES]))
        except (ValueError, KeyError, zstandard.ZstdError) as error:
            raise SetupError(f"not a source model of this version: {error}") from error

    def save(self, path: Path) -> None:
        """Write one compressed file of JSON; nothing in it is ever executed."""
        plain = {_HEADER: self.header.model_dump(mode="json"), _TREES: dict(self.trees)}
        data = json.dumps(plain, sort_keys=True).encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(zstandard.ZstdCompressor(level=19).compress(data))

    @cached_property
    def features(self) -> SourceFeatures:
        """The layout of the rows these trees read."""
        return SourceFeatures(self.header.vocabulary)

    @cached_property
    def languages(self) -> frozenset[str]:
        """The languages of the training texts, by the range that LightGBM keeps of each column."""
        ranges = re.search(r"^feature_infos=(.*)$", self.trees["density"], re.MULTILINE)
        stated = ranges[1].split() if ranges else ()
        return frozenset(
            column.removeprefix("is ")
            for column, spread in zip(self.features.columns, stated, strict=False)
            if column.startswith("is ") and spread != "[0:0]"
        )

    @cached_property
    def _boosters(self) -> Mapping[str, lightgbm.Booster]:
        # Slow to import, and needed only where sources are forecast.
        import lightgbm

        return {name: lightgbm.Booster(model_str=text) for name, text in self.trees.items()}

    def classes(self, rows: Floats) -> Floats:
        """Probability of each class, given that the kernel runs."""
        told = np.asarray(self._predict("density", rows))
        slope, offset = self.header.tie_scaling
        tied = GROUP_OF_CLASS == 1
        before = told[:, tied].sum(axis=1)
        after = _scaled(before, slope, offset)
        factor = np.where(tied, (after / before)[:, None], ((1 - after) / (1 - before))[:, None])
        return np.asarray(told * factor)

    def failure(self, rows: Floats) -> Floats:
        """Probability that the kernel does not run, or not rightly."""
        return _scaled(self._predict("failure", rows), *self.header.failure_scaling)

    def order(self, rows: Floats) -> Floats:
        """Place within a pool, from about -0.5 (last) to 0.5 (first); see `pool_rows`."""
        return np.asarray(self._predict("order", rows))

    def pool_rows(self, queries: Sequence[Query]) -> Floats:
        """What the order model reads: each source, and how it differs from the rest of the pool."""
        return pool_rows(self.features, queries)

    def _predict(self, name: str, rows: Floats) -> Any:
        return self._boosters[name].predict(rows, num_threads=1)

    @cached_property
    def _below(self) -> Floats:
        return np.array(self.header.share_below)

    def density(self, classes: Floats, shift: float = 0.0) -> Distribution:
        """Class probabilities as a distribution over log2 speedup."""
        values = np.clip(classes @ self._below, 0.0, 1.0)
        values[0], values[-1] = 0.0, 1.0
        knots = self.header.knots
        return Distribution(
            knots=knots if shift == 0.0 else tuple(knot + shift for knot in knots),
            cdf_values=tuple(np.maximum.accumulate(values).tolist()),
        )


def pool_rows(features: SourceFeatures, queries: Sequence[Query]) -> Floats:
    """Each source's own features, their distance from the pool's mean, and its likeness to it."""
    static = np.stack([features.static(query.candidate) for query in queries])
    pairs = np.stack(
        [digest(each.candidate.source, each.candidate.language).pair_counts for each in queries]
    )
    alike = likenesses(pairs, pairs)
    np.fill_diagonal(alike, 0.0)
    others = max(len(queries) - 1, 1)
    with np.errstate(invalid="ignore"):
        about = static - np.nanmean(static, axis=0) if not np.isnan(static).all() else static
    return np.column_stack(
        (
            static,
            about,
            alike.sum(axis=1) / others,
            alike.max(axis=1),
            np.sum(alike > 0.9, axis=1) / others,
            np.sum(alike > 0.97, axis=1) / others,
            np.exp(20.0 * (alike - 1.0)).sum(axis=1) / others,
            np.full(len(queries), math.log2(len(queries))),
        )
    )


def _scaled(chance: Any, slope: float, offset: float) -> Floats:
    """A probability with its log odds stretched and moved."""
    p = np.clip(np.asarray(chance, dtype=np.float64), _LEAST_CHANCE, 1.0 - _LEAST_CHANCE)
    return np.asarray(1.0 / (1.0 + np.exp(-(slope * np.log(p / (1.0 - p)) + offset))))


# ---------------------------------------------------------------------------------------- at work


class SourceForecaster:
    """The trained trees in one run, with a residual learnt from the run's own measurements."""

    name = "source"
    concurrency = 0
    refreshes = True

    def __init__(self, model: SourceModel | None = None, path: str | None = None) -> None:
        self._model = model or SourceModel.load(None if path is None else Path(path))
        self._history = SearchHistory()
        self._unread: list[Observation] = []
        shares = np.array(self._model.header.class_shares)
        self._prior = shares
        self._group_prior = _by_group(shares[None])[0]
        self._expected = np.zeros(3)
        self._happened = np.zeros(3)
        self._failures_expected = 0.0
        self._failures_happened = 0.0

    def quote(self, queries: Sequence[Query]) -> Spend:
        """Trees cost milliseconds."""
        del queries
        return {}

    def learn(self, observations: Sequence[Observation]) -> None:
        """Keep the observations; the next forecast, which knows the problem, reads them."""
        self._unread += observations

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        """The trees' view of each candidate, corrected by the run's own record."""
        if not queries:
            return []
        for observation in self._unread:
            self._read(observation, queries[0])
        self._unread = []
        rows = self._model.features.matrix(queries, self._history)
        classes = self._corrected(self._doubted(self._model.classes(rows), queries))
        failures = self._corrected_failure(self._model.failure(rows))
        shifts = self._shifts(queries, classes)
        causes = self._model.header.failure_causes
        return [
            Forecast(
                forecaster=self.name,
                anchor_id=query.anchor.id,
                anchor_log2_speedup=query.anchor_log2_speedup,
                distribution=self._model.density(each, shift),
                failure={kind: float(chance) * share for kind, share in causes.items()},
                rationale=_reason(each),
                is_prior=not self._is_familiar(query),
            )
            for query, each, chance, shift in zip(queries, classes, failures, shifts, strict=True)
        ]

    def _read(self, observation: Observation, query: Query) -> None:
        """Hold what was measured against what would have been forecast, then remember it."""
        best = self._history.best
        if best is not None and observation.kernel.id not in self._history.first_of:
            runtime_s = best.timing.runtime_s if best.timing else 0.0
            asked = query.model_copy(
                update={
                    "candidate": observation.kernel,
                    "anchor": best.kernel,
                    "anchor_log2_speedup": best.log2_speedup,
                    "anchor_runtime_s": runtime_s,
                    "evidence": observation.evidence,
                }
            )
            row = self._model.features.matrix([asked], self._history)
            self._failures_expected += float(self._model.failure(row)[0])
            log2_speedup = observation.measurement.log2_speedup
            if log2_speedup is None:
                self._failures_happened += 1.0
            else:
                outcome = np.searchsorted(CLASS_EDGES, log2_speedup - best.log2_speedup, "right")
                self._happened[GROUP_OF_CLASS[outcome]] += 1.0
                self._expected += _by_group(self._model.classes(row))[0]
        self._history.add(observation)

    def _corrected(self, classes: Floats) -> Floats:
        """More of what this run has had more of than was forecast, shrunk by how little it has."""
        prior = _OWN_WEIGHT * self._group_prior
        ratio = (self._happened + prior) / (self._expected + prior)
        found = classes * ratio[GROUP_OF_CLASS]
        return np.asarray(found / found.sum(axis=1, keepdims=True))

    def _corrected_failure(self, chance: Floats) -> Floats:
        prior = _OWN_WEIGHT * self._model.header.failure_share
        ratio = (self._failures_happened + prior) / (self._failures_expected + prior)
        return _scaled(chance, 1.0, math.log(ratio))

    def _doubted(self, classes: Floats, queries: Sequence[Query]) -> Floats:
        """Wider, towards what is usual, for a source made of words the trees have never seen."""
        known = set(self._model.header.vocabulary)
        doubt = np.zeros(len(queries))
        for index, query in enumerate(queries):
            words = digest(query.candidate.source, query.candidate.language).words
            coverage = sum(n for word, n in words.items() if word in known) / max(words.total(), 1)
            doubt[index] = max(0.0, 1.0 - coverage / self._model.header.usual_coverage)
        doubt[[not query.candidate.source for query in queries]] = 0.0
        return np.asarray(classes * (1.0 - doubt[:, None]) + doubt[:, None] * self._prior)

    def _is_familiar(self, query: Query) -> bool:
        """Whether measured kernels like this one are known, from this run or from training.

        In training it is like those of its language with which it shares enough words.
        """
        if len(self._history.seen) > 1:
            return True
        candidate, vocabulary = query.candidate, self._model.header.vocabulary
        words = digest(candidate.source, candidate.language).words
        shared = sum(word in words for word in vocabulary)
        return candidate.language in self._model.languages and shared >= _WORDS_SHARED

    def _shifts(self, queries: Sequence[Query], classes: Floats) -> Floats:
        """Move densities so that a pool of which nothing was measured is in the model's order."""
        if len(queries) < 2 or len(self._history.seen) > 1:
            return np.zeros(len(queries))
        score = self._model.order(self._model.pool_rows(queries))
        wanted = self._model.header.order_scale * (score - score.mean())
        knots = np.array(self._model.header.knots)
        middle = (knots[1:] + knots[:-1]) / 2.0
        anchors = np.array([query.anchor_log2_speedup for query in queries])
        mean = np.diff(classes @ self._model._below, axis=1) @ middle + anchors
        return np.asarray(wanted - (mean - mean.mean()))


def _by_group(classes: Floats) -> Floats:
    return np.stack([classes[:, g == GROUP_OF_CLASS].sum(axis=1) for g in range(3)], axis=1)


def _reason(classes: Floats) -> str:
    slower, tie, faster = _by_group(classes[None])[0]
    return f"such edits: {faster:.0%} faster, {tie:.0%} no change, {slower:.0%} slower"
