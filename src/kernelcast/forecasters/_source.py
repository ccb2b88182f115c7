"""Forecasts of kernels written as free text, by trees trained on measured kernels.

`SourceModel` is the result of training: LightGBM models as text, and a header of plain JSON.
`SourceForecaster` uses it in one run: it asks the trees about each candidate with all that the run
has measured, and corrects them by their errors in this run so far.

Outcomes are classes of log2 speedup against the anchor, with a tie band in the middle; a forecast
spreads each class as the training data does. The trees say how far a kernel is from what is usual
where it comes from. What is usual there is learnt from measurements (`_experience.py`). The texts
that the run has measured are a second opinion (`_second_opinion.py`). Before any measurement, trees
of their own say in which order the kernels of a pool come (`_pool.py`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import zstandard
from numpy.typing import NDArray

from kernelcast.canonical import as_kernel
from kernelcast.canonical.lint import Fault, faults
from kernelcast.distribution import Distribution
from kernelcast.errors import SetupError
from kernelcast.forecasters._boosted import plain_trees
from kernelcast.forecasters._experience import Experience, Signs
from kernelcast.forecasters._features import (
    SearchHistory,
    SourceFeatures,
    candidate_digest,
    digest,
)
from kernelcast.forecasters._pool import Pool
from kernelcast.forecasters._second_opinion import SecondOpinion
from kernelcast.types import (
    FailureKind,
    Forecast,
    Observation,
    PastRun,
    Query,
    Record,
    Spend,
)

if TYPE_CHECKING:
    import lightgbm

Floats = NDArray[np.float64]

_FORMAT = 4
_MOST_BYTES = 64 << 20
SHIPPED = "model.json.zst"

# The edges of the tie band are those of the default bins, so that no bin cuts through a class.
CLASS_EDGES = (
    *(-2.0, -1.0, math.log2(0.71), -0.2),
    *(math.log2(0.97), -0.012, 0.012, math.log2(1.03)),
    *(0.14, math.log2(1.41), 1.0, 2.0),
)
GROUP_OF_CLASS = np.repeat([0, 1, 2], (5, 3, 5))  # slower, tie, faster
_CLASSES = len(CLASS_EDGES) + 1
_TIE_FROM, _TIE_TO = CLASS_EDGES[4], CLASS_EDGES[7]
_SURE = 0.97  # least P(failure) of a text that no interpreter takes


class Header(Record):
    """All that a model knows besides its trees.

    Attributes:
        languages: Languages of the training texts.
        vocabulary: The words that have a column.
        knots: Where the density changes, from the smallest to the largest outcome.
        share_below: For each class, the share of it below each knot.
        class_shares: Share of each class, mean over the sources of the training rows.
        density_slope: Factor on the trees' scores of the classes, at which they serve best for
            sources that they have not seen.
        near_log2: Octaves of speedup of a kernel that all others of its pool are near.
        order_scale: Octaves of speedup for one unit of the order trees' score.
        failure_odds: Mean and standard deviation of the log odds of failure over the writers.
        failure_signs: Start of the regression of failure in a run.
        outcome_signs: Start of the regression of slower, tie and faster.
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
    density_slope: float
    near_log2: float
    order_scale: float
    failure_odds: tuple[float, float]
    failure_signs: Signs
    outcome_signs: Signs
    failure_causes: Mapping[FailureKind, float]
    usual_coverage: float
    usual_words: int
    trained_on: str


@dataclass(frozen=True, eq=False)
class SourceModel:
    """Header and trees: `density`, `failure` and, of pools, `order`, as LightGBM's text."""

    header: Header
    trees: Mapping[str, str]

    @classmethod
    def load(cls, path: Path | None = None) -> Self:
        """Read a model from a file, by default the one that ships with kernelcast."""
        if path is None:
            return cls._shipped()
        try:
            with path.open("rb") as file:
                model = cls._decode(file.read(_MOST_BYTES))
            model._check()
        except OSError as error:
            raise SetupError(
                f"no source model at {path}: train one with `kernelcast train trees`"
            ) from error
        except ValueError as error:
            raise SetupError(
                f"{path} is not a source model of this version: {error}; train one with "
                "`kernelcast train trees`"
            ) from error
        return model

    @classmethod
    @lru_cache(maxsize=1)
    def _shipped(cls) -> Self:
        file = resources.files("kernelcast.forecasters") / "shipped" / SHIPPED
        if not file.is_file():
            raise SetupError(
                "this install lacks its source model: reinstall, or `kernelcast train trees`"
            )
        return cls._decode(file.read_bytes())

    @classmethod
    def _decode(cls, data: bytes) -> Self:
        """Read a model; a `ValueError` says why it is none."""
        try:
            with zstandard.ZstdDecompressor(max_window_size=_MOST_BYTES).stream_reader(
                data
            ) as file:
                text = file.read(_MOST_BYTES)
            plain = json.loads(text)
            if plain["header"]["format"] != _FORMAT:
                raise ValueError(f"its format is {plain['header']['format']!r:.40}, not {_FORMAT}")
            trees = {str(name): str(words) for name, words in plain["trees"].items()}
            return cls(Header.model_validate(plain["header"]), trees)
        except (KeyError, TypeError, AttributeError, RecursionError, zstandard.ZstdError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error

    def _check(self) -> None:
        """Raise a `ValueError` if parts of the model do not go together."""
        header = self.header
        tables = (header.knots, header.class_shares, *header.share_below)
        lengths = [len(header.knots), _CLASSES, *[len(header.knots)] * _CLASSES]
        if list(map(len, tables)) != lengths or not np.isfinite(np.concatenate(tables)).all():
            raise ValueError("its tables are not of finite numbers, one for each class and knot")
        if not np.all(np.diff(header.knots) > 0) or min(header.class_shares) <= 0:
            raise ValueError("its knots do not rise, or a class has no share")
        if not {"density", "failure"} <= set(self.trees) <= {"density", "failure", "order"}:
            raise ValueError("its trees are not those of density, failure and order")
        self._texts  # noqa: B018

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

        return {name: lightgbm.Booster(model_str=text) for name, text in self._texts.items()}

    @cached_property
    def _texts(self) -> Mapping[str, str]:
        """The trees as LightGBM is given them: checked, and without anything else."""
        whole, of_pools = len(self.features.columns), len(Pool.columns(self.features))
        return {
            name: plain_trees(
                text,
                of_pools if name == "order" else whole,
                _CLASSES if name == "density" else 1,
            )
            for name, text in self.trees.items()
        }

    def _scores(self, name: str, rows: Floats) -> Floats:
        return np.asarray(self._boosters[name].predict(rows, num_threads=1, raw_score=True))

    def class_scores(self, rows: Floats) -> Floats:
        """Score of each class: log odds beyond the usual ones."""
        return self._scores("density", rows)

    def failure_scores(self, rows: Floats) -> Floats:
        """Log odds of failure beyond those of the writer's other kernels."""
        return self._scores("failure", rows)

    def order(self, queries: Sequence[Query]) -> tuple[Floats, Floats]:
        """Log2 speedup of each candidate over its anchor, beyond the mean of the queries.

        Once by all that is seen of the pool, and once by the number of near others alone.
        """
        pool = Pool.of(queries)
        if not pool.digests:
            return np.zeros(len(queries)), np.zeros(len(queries))
        scores = np.concatenate([self._order_scores(rows) for rows in pool.rows(self.features)])
        scores = np.vstack((scores, scores.mean(axis=0)))  # the last is that of no text
        candidates = scores[[pool.place(query.candidate) for query in queries]]
        gaps = candidates - scores[[pool.place(query.anchor) for query in queries]]
        whole, near = (gaps - gaps.mean(axis=0)).T
        return whole, near

    def _order_scores(self, rows: Floats) -> Floats:
        near = self.header.near_log2 * rows[:, -1]
        whole = near
        if "order" in self.trees:
            whole = near + self.header.order_scale * self._scores("order", rows)
        return np.column_stack((whole, near))

    def experience(self) -> Experience:
        """An experience of no measurement."""
        header = self.header
        return Experience(
            self.features.columns,
            header.failure_signs,
            header.failure_odds,
            header.outcome_signs,
            np.array(header.class_shares),
        )

    @cached_property
    def _share_below(self) -> Floats:
        return np.array(self.header.share_below)

    def density(self, classes: Floats) -> Distribution:
        """Class probabilities as a distribution over log2 speedup."""
        values = np.clip(classes @ self._share_below, 0.0, 1.0)
        values[0], values[-1] = 0.0, 1.0
        return Distribution(
            knots=self.header.knots, cdf_values=tuple(np.maximum.accumulate(values).tolist())
        )


def shares_at(shares: Floats, scores: Floats) -> Floats:
    """Class probabilities of rows of scores, given what is usual."""
    raised = np.log(shares) + scores
    raised = np.exp(raised - raised.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def group_scores(shares: Floats, scores: Floats) -> Floats:
    """Scores of slower and of faster against a tie: log odds beyond those of the usual shares."""
    return group_odds(shares_at(shares, scores)) - group_odds(np.atleast_2d(shares))


def group_odds(shares: Floats) -> Floats:
    """Log odds of slower and of faster against a tie, for each row of class probabilities."""
    slower, tie, faster = by_group(shares).T
    return np.asarray(np.log(np.column_stack((slower / tie, faster / tie))))


def by_group(classes: Floats) -> Floats:
    """Probabilities of slower, tie and faster, for each row of class probabilities."""
    return np.stack([classes[:, g == GROUP_OF_CLASS].sum(axis=1) for g in range(3)], axis=1)


# ------------------------------------------------------------------------------------- forecasting


class SourceForecaster:
    """The trained trees in one run, corrected by the run's own measurements."""

    name = "source"
    concurrency = 0
    refreshes = True

    def __init__(
        self,
        model: SourceModel | None = None,
        path: str | None = None,
        experience: Experience | None = None,
    ) -> None:
        """Take a model, or the one at a path, or the shipped one; and earlier runs' experience."""
        self._model = model or SourceModel.load(None if path is None else Path(path))
        self._experience = experience or self._model.experience()
        self._failures = self._experience.new_run()
        self._history = SearchHistory()
        self._texts = SecondOpinion()
        self._unread: list[Observation] = []
        self._asked: Query | None = None  # the last question, which knows the problem

    def quote(self, queries: Sequence[Query]) -> Spend:
        """Trees cost milliseconds."""
        del queries
        return {}

    def remember(self, runs: Sequence[PastRun]) -> None:
        """Gather experience from earlier runs, the earliest first."""
        for past in runs:
            seed = as_kernel(past.problem.seed_source, past.problem.language)
            asked = Query(
                problem=past.problem,
                device=past.device,
                candidate=seed,
                anchor=seed,
                anchor_log2_speedup=0.0,
                anchor_runtime_s=math.nan,
            )
            run = SourceForecaster(self._model, experience=self._experience)
            for observation in past.observations:
                run._read(observation, asked)

    def learn(self, observations: Sequence[Observation]) -> None:
        """Read the observations, or keep them until a question tells what the problem is."""
        self._unread += observations
        if self._asked is not None:
            self._read_all(self._asked)

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        """The trees' forecast of each candidate, corrected by the run's own record."""
        if not queries:
            return []
        self._asked = queries[0]
        self._read_all(self._asked)
        rows = self._model.features.matrix(queries, self._history)
        familiar = np.array([self._is_familiar(query) for query in queries])
        classes = self._experience.blended(self._opinions(rows, self._model.class_scores(rows)))
        doubt, moves = self._doubt(queries, familiar), np.zeros(len(queries))
        if (order := self._order(queries)) is not None:
            # Before any measurement, a text tells its place among others, and nothing of its own.
            classes = np.broadcast_to(classes.mean(axis=0), classes.shape)
            doubt = np.where(familiar, doubt.mean(), 1.0)
            whole, near = order
            # A text like none that was measured moves only if more of its pool is near than usual.
            moves = np.where(familiar, (1.0 - doubt) * whole, np.maximum(near, 0.0))
        usual = self._experience.class_shares(len(self._history.measured))
        classes = classes * (1.0 - doubt[:, None]) + doubt[:, None] * usual
        densities = self._with_texts(
            queries, map(Distribution.shift, map(self._model.density, classes), moves.tolist())
        )
        failures = self._experience.p_failure(
            rows,
            self._model.failure_scores(rows),
            [query.writer for query in queries],
            self._failures,
        )
        unread = [_is_no_kernel(query) for query in queries]
        failures = np.where(unread, np.maximum(failures, _SURE), failures)
        return [
            Forecast(
                forecaster=self.name,
                anchor_id=query.anchor.id,
                anchor_log2_speedup=query.anchor_log2_speedup,
                distribution=density,
                failure={
                    kind: float(failure) * share
                    for kind, share in self._causes(query, is_no_kernel=is_unread).items()
                },
                rationale=_reason(density, query),
                is_prior=not is_familiar,
            )
            for query, density, failure, is_familiar, is_unread in zip(
                queries, densities, failures, familiar.tolist(), unread, strict=True
            )
        ]

    def _with_texts(
        self, queries: Sequence[Query], forecasts: Iterable[Distribution]
    ) -> list[Distribution]:
        """Blend forecasts against anchors with what the measured texts say."""
        against_reference = [
            forecast.shift(query.anchor_log2_speedup)
            for query, forecast in zip(queries, forecasts, strict=True)
        ]
        texts = [candidate_digest(query).terms for query in queries]
        return [
            forecast.shift(-query.anchor_log2_speedup)
            for query, forecast in zip(
                queries, self._texts.blended(texts, against_reference), strict=True
            )
        ]

    def _causes(self, query: Query, *, is_no_kernel: bool) -> Mapping[FailureKind, float]:
        """Share of each cause in P(failure): a text that nothing takes does not compile."""
        # Evidence of a module may be that of the C++ in it alone.
        if is_no_kernel and query.evidence is None:
            return {FailureKind.COMPILE_ERROR: 1.0}
        return self._model.header.failure_causes

    def _read_all(self, query: Query) -> None:
        for observation in self._unread:
            self._read(observation, query)
        self._unread = []

    def _read(self, observation: Observation, query: Query) -> None:
        """Compare a measurement with the forecast it would have had, then remember it."""
        problem = query.problem
        if not self._history.measured and observation.kernel.source != problem.seed_source:
            seed = as_kernel(problem.seed_source, problem.language)
            self._history.begin(seed, problem.entry)
            self._texts.learn(digest(seed.source, seed.language, problem.entry).terms, 0.0)
        best, log2_speedup = self._history.best, observation.measurement.log2_speedup
        foreseen = None
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
            self._experience.add_failure(
                row,
                float(self._model.failure_scores(row)[0]),
                observation.writer,
                self._failures,
                failed=log2_speedup is None,
            )
            if log2_speedup is not None:
                change = log2_speedup - best.log2_speedup
                place = int(np.searchsorted(CLASS_EDGES, change, "right"))
                scores = self._model.class_scores(row)
                opinions = self._opinions(row, scores)
                (classes,) = self._experience.blended(opinions)
                foreseen = self._model.density(classes).shift(best.log2_speedup)
                self._experience.add_outcome(
                    row,
                    self._group_scores(scores),
                    int(GROUP_OF_CLASS[place]),
                    place,
                    len(self._history.measured),
                    opinions[:, 0, place],
                )
        self._history.add(observation, problem.entry)
        if log2_speedup is not None:
            kernel = observation.kernel
            text = digest(kernel.source, kernel.language, problem.entry).terms
            self._texts.learn(text, log2_speedup, foreseen)

    def _opinions(self, rows: Floats, scores: Floats) -> Floats:
        """Class probabilities by the trees alone, and those whose groups the experience states."""
        usual = self._experience.class_shares(len(self._history.measured))
        trees = shares_at(usual, scores)
        classes = shares_at(usual, self._model.header.density_slope * scores)
        ratio = self._experience.groups(rows, self._group_scores(scores)) / by_group(classes)
        return np.stack((trees, classes * ratio[:, GROUP_OF_CLASS]))

    def _group_scores(self, scores: Floats) -> Floats:
        return group_scores(np.array(self._model.header.class_shares), scores)

    def _order(self, queries: Sequence[Query]) -> tuple[Floats, Floats] | None:
        """The order of a pool of which nothing but the start is measured; None for any other."""
        sides = {query.anchor.id for query in queries}, {query.candidate.id for query in queries}
        if len(queries) < 2 or len(self._history.measured) > 1 or min(map(len, sides)) > 1:
            return None
        return self._model.order(queries)

    def _doubt(self, queries: Sequence[Query], familiar: NDArray[np.bool_]) -> Floats:
        """Return the share of the usual outcomes in each forecast: more if few words are known.

        It is 1 for a source like none that was measured.
        """
        header = self._model.header
        known = set(header.vocabulary)
        coverage = np.array(
            [
                candidate_digest(query).coverage(known) if query.candidate.source else math.inf
                for query in queries
            ]
        )
        doubt = np.maximum(0.0, 1.0 - coverage / header.usual_coverage)
        doubt[~familiar] = 1.0
        return doubt

    def _is_familiar(self, query: Query) -> bool:
        """True if this run, or training in the same language, has measured kernels like this."""
        if len(self._history.measured) > 1:
            return True
        header, words = self._model.header, candidate_digest(query).words
        shared = sum(word in words for word in header.vocabulary)
        return query.candidate.language in header.languages and shared >= header.usual_words


def _is_no_kernel(query: Query) -> bool:
    """True if no interpreter takes the text."""
    return any(fault.kind == "syntax" for fault in _faults(query))


def _faults(query: Query) -> tuple[Fault, ...]:
    kernel = query.candidate
    return faults(kernel.source, kernel.language, query.problem.entry)


def _reason(density: Distribution, query: Query) -> str:
    slower, faster = density.cdf(_TIE_FROM), density.probability_above(_TIE_TO)
    tie = 1.0 - slower - faster
    edits = f"such edits: {faster:.0%} faster, {tie:.0%} no change, {slower:.0%} slower"
    flaws = _faults(query)
    return f"{flaws[0].text}; {edits}" if flaws else edits
