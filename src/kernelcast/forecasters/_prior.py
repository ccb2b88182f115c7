"""What is believed of configurations before they are measured, and how times become targets.

Times are modelled as log2 above the fastest. Differences between slow configurations are
compressed, so that the model fits the fast ones best. Predictions undo the compression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kernelcast.distribution import Distribution
from kernelcast.forecasters._gaussian import (
    HEAVY_LEVELS,
    HEAVY_PLACES,
    Floats,
    GaussianProcess,
    Rows,
)

Flags = NDArray[np.bool_]

FEWEST_TIMED = 3  # before a cold model is used
FEWEST_FITTED = 4
SLOW_SLOPE = 0.25  # factor on a difference between two slow configurations
NO_KNEE = 1e6  # slower than any kernel
_LEAST_STD_LOG2 = 0.015  # about 1%, the precision of timing
_UNKNOWN_STD_LOG2, HARDLY_KNOWN_STD_LOG2 = 4.0, 1.5
_UNCHOSEN_WIDTH = 1.25  # tuned for 80% coverage on the public tuner spaces
_BLIND_WIDTH, _ADDED_ERRORS, _USUAL_ERRORS = 1.05, 4.0, 3.0  # tuned likewise
_MEAN_ERROR = (2 / np.pi) ** 0.5  # of a standard normal, absolute

# Trust in siblings, tuned on the public tuner spaces.
_SIBLING_KNEE = 0.25  # quantile at which the slow part of a sibling's table begins
_SIBLING_FEATURE_WEIGHT = 0.05
_SIBLING_SLOPE_VARIANCE = 0.03
_SIBLING_OFFSET_VARIANCE = 20.0
_SIBLING_SPREAD_WEIGHT = 5.0
_LONE_SIBLING_SPREAD_LOG2 = 0.29
_GAPS_FILLED_FROM = 400  # rows of a sibling's table
_LEAST_ESTIMATED_SCALE = 0.05  # the first estimates may be all alike


@dataclass(frozen=True)
class Sibling:
    """The same configurations on another device, or their estimated times on this one."""

    device: str
    log2_runtime: Floats
    """In the order of the pool's configurations; nan if unknown."""
    failed: Flags
    """True if the configuration is known to fail there."""
    same_vendor: bool = True
    is_estimate: bool = False
    """True if no device was involved; measured times of the vendor are believed before it."""


@dataclass(frozen=True)
class Predictions:
    """Predictions for the whole pool, one entry per configuration.

    `mean` and `std` are log2 above `best_log2`, compressed above the `knee`. `level_log2` is the
    standard deviation of an error that all entries share.
    """

    mean: Floats
    std: Floats
    p_ok: Floats
    best_log2: float = 0.0
    knee: float = NO_KNEE
    level_log2: float = 0.0

    def at(self, deviations: float) -> Floats:
        """Return the log2 runtime at a number of standard deviations towards the slow side.

        Each point is expanded by itself. Scaling one expanded standard deviation would give times
        that no kernel has, where a step crosses the knee.
        """
        middle = _expand(self.mean, self.knee)
        away = _expand(self.mean + deviations * self.std, self.knee) - middle
        least = abs(deviations) * _LEAST_STD_LOG2
        log2_runtime: Floats = self.best_log2 + middle + np.sign(deviations) * np.hypot(away, least)
        return log2_runtime

    def speedups(self, rows: Rows, log2_units: Floats) -> list[Distribution]:
        """Return the distributions of log2 speedup of some rows, against times in `log2_units`."""
        # Speedup falls as runtime rises, so the slow side has the low quantiles.
        runtimes = np.array([self.at(-place) for place in HEAVY_PLACES]).T[rows]
        return Distribution.all_from_quantiles(HEAVY_LEVELS, log2_units[:, None] - runtimes)

    @property
    def log2_runtime(self) -> Floats:
        """The median log2 runtime."""
        return self.at(0.0)

    @property
    def std_log2(self) -> Floats:
        """The standard deviation of the log2 runtime, with the shared error."""
        spread: Floats = np.hypot(0.5 * (self.at(1.0) - self.at(-1.0)), self.level_log2)
        return spread


@dataclass(frozen=True)
class Prior:
    """The belief before any measurement on this device, and its model.

    Arrays have one entry or row per configuration.
    """

    features: Floats
    """The parameters, then each sibling's times."""
    linear: Floats | None
    mean: Floats
    """Compressed log2 above the fastest; zero when cold."""
    failure_share: Floats
    """The share of the siblings with a result that failed; nan if none has a result."""
    knee: float | None
    """The start of the compression; None when cold, which means the median of the measured."""
    spread: float
    """The standard deviation between siblings on the fast configurations, in log2."""
    level_log2: float
    favourites: tuple[int, ...]
    strangers: bool
    """True if every sibling is of another vendor."""
    tables: tuple[_Table, ...]
    akin: Flags
    """For each table, whether it counts towards the mean."""

    @classmethod
    def of(cls, siblings: Sequence[Sibling], features: Floats) -> Prior:
        """Return the prior of the configurations that have these features."""
        useful = [sibling for sibling in siblings if np.isfinite(sibling.log2_runtime).any()]
        if not useful:
            return cls.cold(features)
        akin = np.array([s.same_vendor and not s.is_estimate for s in useful])
        if not akin.any():
            akin = np.array([sibling.is_estimate for sibling in useful])
        strangers = not akin.any()
        akin = akin | strangers
        filled = [_Table(sibling, features) for sibling in useful]
        tables = np.array([table.above for table in filled])
        knee = float(np.median(np.quantile(tables, _SIBLING_KNEE, axis=1)))
        tables = _compress(tables, knee)
        mean = tables[akin].mean(axis=0)
        fast = np.argsort(mean, kind="stable")[: max(1, len(mean) // 5)]
        spread = _LONE_SIBLING_SPREAD_LOG2
        if len(tables) > 1:
            spread = float(np.sqrt(tables[:, fast].var(axis=0, ddof=1).mean()))
        guesswork = np.mean([table.variance[fast].mean() for table in filled])
        for table, values in zip(filled, tables, strict=True):
            table.centre = float(values.mean())
            least = _LEAST_ESTIMATED_SCALE if table.is_estimate else 1e-9
            table.scale = float((values - table.centre).std()) + least
        failed = np.array([sibling.failed for sibling in useful])
        tried = failed | [np.isfinite(sibling.log2_runtime) for sibling in useful]
        trust = np.where([sibling.same_vendor for sibling in useful], 1.0, 0.5)
        with np.errstate(invalid="ignore"):
            failure_share = (trust @ failed) / (trust @ tried)
        standard = _standard(filled, tables)
        prior = cls(
            features=np.hstack([features, standard]),
            linear=standard * np.sqrt(_SIBLING_SLOPE_VARIANCE / len(useful)),
            mean=mean,
            failure_share=failure_share,
            knee=knee,
            spread=float(np.sqrt(spread**2 + 0.07**2 + guesswork)),
            level_log2=float(
                np.median([np.nanmin(useful[k].log2_runtime) for k in np.flatnonzero(akin)])
            ),
            favourites=(),
            strangers=strangers,
            tables=tuple(filled),
            akin=akin,
        )
        first = [prior.rank, *(table + 0.3 * prior.rank for table in tables[akin])]
        return replace(prior, favourites=tuple(int(np.argmin(ranks)) for ranks in first))

    @classmethod
    def cold(cls, features: Floats) -> Prior:
        """Return the prior without siblings."""
        size = len(features)
        unknown = np.full(size, np.nan)
        none = np.zeros(0, dtype=bool)
        return cls(
            features,
            linear=None,
            mean=np.zeros(size),
            failure_share=unknown,
            knee=None,
            spread=0.0,
            level_log2=0.0,
            favourites=(),
            strangers=True,
            tables=(),
            akin=none,
        )

    def without_siblings(self) -> Prior:
        """Return the prior of the same times that takes nothing but their spread from siblings."""
        columns = self.features.shape[1] - len(self.tables)
        spreads = [table.scale**2 for table in self.tables]
        return replace(
            self,
            features=self.features[:, :columns],
            linear=None,
            mean=np.zeros_like(self.mean),
            spread=float(np.sqrt(np.mean(spreads))),
            tables=(),
            akin=np.zeros(0, dtype=bool),
        )

    def expanded(self) -> Prior:
        """Return the prior whose mean is not compressed."""
        return self if self.knee is None else replace(self, mean=_expand(self.mean, self.knee))

    def at(self, rows: Rows, features: Floats, log2_estimates: Floats) -> Prior:
        """Return the prior of other configurations.

        `rows` are their indices in this prior, -1 if it lacks them; `log2_estimates` are nan where
        there is none. The belief on one does not depend on the others, not even by rounding.
        """
        if self.knee is None:
            return Prior.cold(features)
        lacking = np.flatnonzero(rows < 0)
        guessed = [
            [table.place(features[[at]], log2_estimates[at]) for at in lacking]
            for table in self.tables
        ]
        values = _compress(np.array(guessed).reshape(len(self.tables), len(lacking)), self.knee)
        standard = _standard(self.tables, values)
        new_features = self.features[rows]
        new_features[lacking] = np.hstack([features[lacking], standard])
        linear, mean, failure_share = (
            part[rows] for part in (self._linear, self.mean, self.failure_share)
        )
        linear[lacking] = standard * np.sqrt(_SIBLING_SLOPE_VARIANCE / len(self.tables))
        mean[lacking] = values[self.akin].mean(axis=0)
        failure_share[lacking] = np.nan
        return replace(
            self, features=new_features, linear=linear, mean=mean, failure_share=failure_share
        )

    def __add__(self, other: Prior) -> Prior:
        """Return the prior of both priors' configurations."""
        return replace(
            self,
            features=np.vstack([self.features, other.features]),
            linear=None if self.linear is None else np.vstack([self._linear, other._linear]),
            mean=np.append(self.mean, other.mean),
            failure_share=np.append(self.failure_share, other.failure_share),
        )

    @property
    def is_estimated(self) -> bool:
        """True if the mean is made of estimates alone."""
        kin = [table for table, counts in zip(self.tables, self.akin, strict=True) if counts]
        return bool(kin) and all(table.is_estimate for table in kin)

    @property
    def _linear(self) -> Floats:
        assert self.linear is not None
        return self.linear

    @property
    def rank(self) -> Floats:
        """Sort key of the siblings' order: the failing configurations come last."""
        return self.mean + 8.0 * (np.nan_to_num(self.failure_share) > 0)

    def learns_from(self, timed: int) -> bool:
        """Return True if so many times are enough for the model."""
        return timed >= (FEWEST_TIMED if self.knee is None else 1)

    def predictions(self, times: Floats, p_ok: Floats) -> Predictions:
        """Return predictions from log2 `times` that are too few for the model."""
        level = float(times.mean()) if len(times) else self.level_log2
        unknown = HARDLY_KNOWN_STD_LOG2 if len(times) else _UNKNOWN_STD_LOG2
        if self.knee is None:
            return Predictions(level + self.mean, np.full_like(self.mean, unknown), p_ok)
        mean = level + _expand(self.mean, self.knee)
        return Predictions(mean, np.full_like(mean, self.spread), p_ok, level_log2=unknown)

    def model(self) -> GaussianProcess:
        """Return the Gaussian process of the differences from this prior."""
        if self.knee is None:
            return GaussianProcess(self.features)
        siblings = len(self.tables)
        columns = self.features.shape[1] - siblings
        return GaussianProcess(
            self.features,
            np.append(np.full(columns, columns**-0.5), np.full(siblings, _SIBLING_FEATURE_WEIGHT)),
            self.linear,
            _SIBLING_OFFSET_VARIANCE,
            (_SIBLING_SPREAD_WEIGHT, self.spread**2),
        )


class _Table:
    """A sibling's log2 times above its fastest, gaps filled by a model, failures as slow."""

    centre: float
    """The mean of the compressed times."""
    scale: float
    """Their standard deviation."""

    def __init__(self, sibling: Sibling, features: Floats) -> None:
        times = sibling.log2_runtime
        self.is_estimate = sibling.is_estimate
        timed = np.flatnonzero(np.isfinite(times))
        self._fastest = float(times[timed].min())
        above = times - self._fastest
        # A part of the table shows its shape.
        chosen = timed[representatives(times[timed], _GAPS_FILLED_FROM)]
        self._shape = (features[chosen], above[chosen])
        self._level = 0.0
        self.variance = np.zeros(len(times))
        unknown = ~np.isfinite(times) & ~sibling.failed
        if unknown.any() and len(timed) >= FEWEST_FITTED:
            above[unknown], self.variance[unknown] = self.guess(features[unknown])
            # A sample may lack the fastest row, so the level is that of the filled table.
            self._level = float(np.quantile(above[~sibling.failed], 0.002))
            above = above - self._level
        self._slow = float(np.nanquantile(above, 0.75))
        self.above = np.where(np.isfinite(above), above, self._slow)

    @cached_property
    def _model(self) -> tuple[GaussianProcess, Target]:
        features, above = self._shape
        target = Target.of(above, Prior.cold(features), np.arange(len(above)))
        model = GaussianProcess(features)
        model.fit(np.arange(len(above)), target.values)
        model.condition(np.arange(len(above)), room=0)
        return model, target

    def place(self, features: Floats, log2_estimate: float) -> float:
        """Return the time of one configuration that the table lacks: its estimate, or a guess."""
        if self.is_estimate and np.isfinite(log2_estimate):
            return float(log2_estimate) - self._fastest - self._level
        return float(self.guess(features)[0][0])

    def guess(self, features: Floats) -> tuple[Floats, Floats]:
        """Return the times of configurations that the table lacks, and their variance."""
        known, _ = self._shape
        if len(known) < FEWEST_FITTED:
            return np.full(len(features), self._slow), np.zeros(len(features))
        model, target = self._model
        model.move(np.vstack([known, features]))
        model.look(np.arange(len(known), len(known) + len(features)))
        mean, std = model.posterior(target.values)
        guessed = _expand(target.centre + target.scale * mean, target.knee)
        return guessed - self._level, (target.scale * std) ** 2


def _standard(tables: Sequence[_Table], compressed: Floats) -> Floats:
    """Return each table's compressed times in its standard units, one column per table."""
    return np.stack(
        [(row - table.centre) / table.scale for row, table in zip(compressed, tables, strict=True)],
        axis=1,
    )


def representatives(times: Floats, most: int) -> Rows:
    """Return at most `most` indices, fastest first: the fastest half, and a spread of the rest."""
    order = np.argsort(times, kind="stable")
    if len(order) <= most:
        return order
    half = most // 2
    rest = order[half:]
    return np.append(order[:half], rest[:: -(-len(rest) // half)])


@dataclass(frozen=True)
class Target:
    """Times of configurations as the model's targets: compressed, minus the prior, scaled."""

    values: Floats
    centre: float
    scale: float
    knee: float
    best_log2: float

    @classmethod
    def of(
        cls,
        times: Floats,
        prior: Prior,
        rows: Rows,
        typical: Flags | None = None,
        knee: float | None = None,
    ) -> Target:
        """Return the targets of log2 `times` at `rows`; the `typical` ones set a cold mean.

        `knee` replaces that of the prior.
        """
        best_log2 = float(times.min())
        above_best = times - best_log2
        knee = prior.knee if knee is None else knee
        if knee is None:
            knee = float(np.median(above_best))
        values = _compress(above_best, knee) - prior.mean[rows]
        centre, scale = 0.0, 1.0
        if prior.knee is None:
            alike = values if typical is None or not typical.any() else values[typical]
            centre, scale = float(alike.mean()), float(values.std()) + 1e-9
        return cls((values - centre) / scale, centre, scale, knee, best_log2)

    def in_units(self, mean: Floats, std: Floats, prior_mean: Floats) -> tuple[Floats, Floats]:
        """Return a posterior over targets as compressed log2 above the fastest."""
        return prior_mean + self.centre + self.scale * mean, self.scale * std

    def predictions(
        self, model: GaussianProcess, prior_mean: Floats, p_ok: Floats, widening: float
    ) -> Predictions:
        """Return the predictions at the model's candidates."""
        mean, std = model.posterior(self.values)
        mean, std = self.in_units(mean, std * widening, prior_mean)
        return Predictions(mean, std, p_ok, best_log2=self.best_log2, knee=self.knee)


def width(model: GaussianProcess, targets: Floats) -> float:
    """Return the factor by which the model's standard deviations are too small.

    It is that of the leave-one-out errors, shrunk by four errors of the expected size. Measured
    configurations were chosen, and are easier to predict than the others.
    """
    residual, expected = model.left_out(targets)
    errors = float(((residual / expected) ** 2).sum())
    factor = float(np.sqrt((errors + 4.0) / (len(residual) + 4.0)))
    return _UNCHOSEN_WIDTH * min(max(factor, 0.7), 3.0)


def unchosen_width(model: GaussianProcess, targets: Floats, blind: Flags) -> float:
    """Return the factor by which the model's standard deviations are too small at other rows.

    Most measured rows were chosen to be fast, and are easier to predict than the others. So the
    leave-one-out errors are those of the `blind` rows, which were chosen regardless of their
    forecast. A few of the size of the errors at the rows that the model is least sure of are added.
    The fewer are blind, the more the factor may be wrong, and the larger it is.
    """
    residual, expected = model.left_out(targets)
    errors = np.abs(residual / expected) / _MEAN_ERROR
    doubtful = errors[expected >= np.median(expected)]
    usual = (doubtful.sum() + _USUAL_ERRORS) / (len(doubtful) + _USUAL_ERRORS)
    count = float(blind.sum())
    mean = (errors[blind].sum() + _ADDED_ERRORS * usual) / (count + _ADDED_ERRORS)
    return _BLIND_WIDTH * float(mean) * (1 + 0.5 / (count + 1))


def _compress(above_best: Floats, knee: float) -> Floats:
    return np.where(above_best <= knee, above_best, knee + SLOW_SLOPE * (above_best - knee))


def _expand(compressed: Floats, knee: float) -> Floats:
    return np.where(compressed <= knee, compressed, knee + (compressed - knee) / SLOW_SLOPE)
