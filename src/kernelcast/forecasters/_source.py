"""Forecasts of kernels written as free text, by trees trained on measured kernels.

`SourceModel` is the result of training: LightGBM models as text, and a header of plain JSON.
`SourceForecaster` uses it in one run: it asks the trees about each candidate with all that the run
has measured, and corrects them by their errors in this run so far.

Outcomes are classes of log2 speedup against the anchor, with a tie band in the middle; a forecast
spreads each class as the training data does. While only the start is measured, the order of several
candidates comes from a model of ranks within a pool.
"""

from __future__ import annotations

import json
import math
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
    candidate_digest,
    likenesses,
)
from kernelcast.types import FailureKind, Forecast, Observation, Query, Record, Spend

if TYPE_CHECKING:
    import lightgbm

Floats = NDArray[np.float64]

_FORMAT = 2
SHIPPED = "model.json.zst"

# The edges of the tie band are those of the default bins, so that no bin cuts through a class.
CLASS_EDGES = (
    *(-2.0, -1.0, math.log2(0.71), -0.2),
    *(math.log2(0.97), -0.012, 0.012, math.log2(1.03)),
    *(0.14, math.log2(1.41), 1.0, 2.0),
)
GROUP_OF_CLASS = np.repeat([0, 1, 2], (5, 3, 5))  # slower, tie, faster
_OWN_WEIGHT = 20.0  # measurements after which the run's own record weighs as much as the trees
_LEAST_CHANCE = 1e-6


class Header(Record):
    """All that a model knows besides its trees.

    Attributes:
        languages: Languages of the training texts.
        vocabulary: The words that have a column.
        knots: Where the density changes, from the smallest to the largest outcome.
        share_below: For each class, the share of it below each knot.
        class_shares: Share of each class among the training outcomes.
        tie_scaling: Slope and offset in log odds that calibrate the probability of a tie.
        failure_scaling: The same for the probability of failure.
        order_scale: Octaves of speedup for one unit of the order model's score.
        usual_coverage: Share of names and words that are in the vocabulary, in all but the oddest
            5% of the training texts.
        usual_words: Number of words of the vocabulary in all but the oddest 5%.
    """

    format: int = _FORMAT
    languages: tuple[str, ...]
    vocabulary: tuple[str, ...]
    knots: tuple[float, ...]
    share_below: tuple[tuple[float, ...], ...]
    class_shares: tuple[float, ...]
    failure_share: float
    failure_causes: Mapping[FailureKind, float]
    tie_scaling: tuple[float, float]
    failure_scaling: tuple[float, float]
    order_scale: float
    usual_coverage: float
    usual_words: int
    trained_on: str


@dataclass(frozen=True, eq=False)
class SourceModel:
    """Header and trees (`density`, `failure`, `order`, each in LightGBM's own text format)."""

    header: Header
    trees: Mapping[str, str]

    @classmethod
    def load(cls, path: Path | None = None) -> Self:
        """Read a model from a file, by default the one that ships with kernelcast."""
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
            if plain["header"]["format"] != _FORMAT:
                raise ValueError(f"its format is {plain['header']['format']}, not {_FORMAT}")
            return cls(Header.model_validate(plain["header"]), dict(plain["trees"]))
        except (ValueError, KeyError, TypeError, zstandard.ZstdError) as error:
            raise SetupError(
                f"not a source model of this version: {error}; train one with `kernelcast train`"
            ) from error

    def save(self, path: Path) -> None:
        """Write one compressed file of JSON; nothing in it is ever executed."""
        plain = {"header": self.header.model_dump(mode="json"), "trees": dict(self.trees)}
        data = json.dumps(plain, sort_keys=True).encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(zstandard.ZstdCompressor(level=19).compress(data))

    @cached_property
    def features(self) -> SourceFeatures:
        """The layout of the rows that these trees read."""
        return SourceFeatures(self.header.vocabulary)

    @cached_property
    def _boosters(self) -> Mapping[str, lightgbm.Booster]:
        # Slow to import, and needed only where sources are forecast.
        import lightgbm

        return {name: lightgbm.Booster(model_str=text) for name, text in self.trees.items()}

    def _predict(self, name: str, rows: Floats) -> Floats:
        return np.asarray(self._boosters[name].predict(rows, num_threads=1))

    def classes(self, rows: Floats) -> Floats:
        """Probability of each class if the kernel runs."""
        chances = self._predict("density", rows)
        tied = GROUP_OF_CLASS == 1
        before = chances[:, tied].sum(axis=1)
        after = _scaled(before, *self.header.tie_scaling)
        factor = np.where(tied, (after / before)[:, None], ((1 - after) / (1 - before))[:, None])
        return np.asarray(chances * factor)

    def failure(self, rows: Floats) -> Floats:
        """Probability that the kernel does not run, or is wrong."""
        return _scaled(self._predict("failure", rows), *self.header.failure_scaling)

    def order(self, queries: Sequence[Query]) -> Floats:
        """Log2 speedup of each candidate against the mean of their pool."""
        score = self._predict("order", pool_rows(self.features, queries))
        return np.asarray(self.header.order_scale * (score - score.mean()))

    @cached_property
    def _share_below(self) -> Floats:
        return np.array(self.header.share_below)

    def density(self, classes: Floats, shift: float = 0.0) -> Distribution:
        """Class probabilities as a distribution over log2 speedup, moved by `shift`."""
        values = np.clip(classes @ self._share_below, 0.0, 1.0)
        values[0], values[-1] = 0.0, 1.0
        knots = self.header.knots
        return Distribution(
            knots=knots if shift == 0.0 else tuple(knot + shift for knot in knots),
            cdf_values=tuple(np.maximum.accumulate(values).tolist()),
        )

    def means(self, classes: Floats) -> Floats:
        """Mean log2 speedup of each row of class probabilities."""
        knots = np.array(self.header.knots)
        middle = (knots[1:] + knots[:-1]) / 2.0
        return np.asarray(np.diff(classes @ self._share_below, axis=1) @ middle)


def pool_rows(features: SourceFeatures, queries: Sequence[Query]) -> Floats:
    """Each source's own features, their distance from the pool's mean, and its likeness to it."""
    digests = [candidate_digest(query) for query in queries]
    static = np.stack([features.static(read) for read in digests])
    pairs = np.stack([read.pair_counts for read in digests])
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


# ------------------------------------------------------------------------------------- forecasting


class SourceForecaster:
    """The trained trees in one run, corrected by the run's own measurements."""

    name = "source"
    concurrency = 0
    refreshes = True

    def __init__(self, model: SourceModel | None = None, path: str | None = None) -> None:
        self._model = model or SourceModel.load(None if path is None else Path(path))
        self._history = SearchHistory()
        self._unread: list[Observation] = []
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
        """The trees' forecast of each candidate, corrected by the run's own record."""
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
                distribution=self._model.density(chances, shift),
                failure={kind: float(failure) * share for kind, share in causes.items()},
                rationale=_reason(chances),
                is_prior=not self._is_familiar(query),
            )
            for query, chances, failure, shift in zip(
                queries, classes, failures, shifts, strict=True
            )
        ]

    def _read(self, observation: Observation, query: Query) -> None:
        """Compare a measurement with the forecast it would have had, then remember it."""
        best = self._history.best
        if best is not None and observation.kernel.id not in self._history.by_id:
            asked = query.model_copy(
                update={
                    "candidate": observation.kernel,
                    "anchor": best.kernel,
                    "anchor_log2_speedup": best.log2_speedup,
                    "anchor_runtime_s": best.timing.runtime_s if best.timing else 0.0,
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
                self._expected += _by_group(self._model.classes(row)[0])
        self._history.add(observation, query.problem.entry)

    def _corrected(self, classes: Floats) -> Floats:
        """Raise groups that this run had more often than forecast, the more outcomes it has."""
        prior = _OWN_WEIGHT * _by_group(np.array(self._model.header.class_shares))
        ratio = (self._happened + prior) / (self._expected + prior)
        raised = classes * ratio[GROUP_OF_CLASS]
        return np.asarray(raised / raised.sum(axis=1, keepdims=True))

    def _corrected_failure(self, chance: Floats) -> Floats:
        prior = _OWN_WEIGHT * self._model.header.failure_share
        ratio = (self._failures_happened + prior) / (self._failures_expected + prior)
        return _scaled(chance, 1.0, math.log(ratio))

    def _doubted(self, classes: Floats, queries: Sequence[Query]) -> Floats:
        """Move forecasts of sources with few known words towards the usual outcomes."""
        header = self._model.header
        known = set(header.vocabulary)
        coverage = np.array(
            [
                candidate_digest(query).coverage(known) if query.candidate.source else math.inf
                for query in queries
            ]
        )
        doubt = np.maximum(0.0, 1.0 - coverage / header.usual_coverage)[:, None]
        return np.asarray(classes * (1.0 - doubt) + doubt * np.array(header.class_shares))

    def _is_familiar(self, query: Query) -> bool:
        """True if this run, or training in the same language, has measured kernels like this."""
        if len(self._history.measured) > 1:
            return True
        header, words = self._model.header, candidate_digest(query).words
        shared = sum(word in words for word in header.vocabulary)
        return query.candidate.language in header.languages and shared >= header.usual_words

    def _shifts(self, queries: Sequence[Query], classes: Floats) -> Floats:
        """Shifts that put a pool of which nothing is measured into the order model's order."""
        if len(queries) < 2 or len(self._history.measured) > 1:
            return np.zeros(len(queries))
        anchors = np.array([query.anchor_log2_speedup for query in queries])
        mean = self._model.means(classes) + anchors
        return np.asarray(self._model.order(queries) - (mean - mean.mean()))


def _by_group(classes: Floats) -> Floats:
    """Probabilities of slower, tie and faster."""
    return np.array([classes[group == GROUP_OF_CLASS].sum() for group in range(3)])


def _reason(classes: Floats) -> str:
    slower, tie, faster = _by_group(classes)
    return f"such edits: {faster:.0%} faster, {tie:.0%} no change, {slower:.0%} slower"
