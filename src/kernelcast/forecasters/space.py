"""Forecasts of a fixed pool of configurations, and the choice of the next one to measure.

Cold, the forecaster learns from the pool's own measurements alone. With siblings (times of the same
configurations on other devices) it starts from their mean and learns the differences.

Times are modelled as log2 above the fastest. Differences between slow configurations are
compressed, so that the model fits the fast ones best. Predictions undo the compression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from kernelcast.errors import SetupError
from kernelcast.forecasters._gaussian import Floats, GaussianProcess, Rows
from kernelcast.types import Parameters

Flags = NDArray[np.bool_]

_DIVERSE_STARTS = 8
_DIVERSE_AMONG_STRANGERS = 4  # if all siblings are of another vendor
_DIVERSE_DRAWS = 30
_SPREAD_STARTS, _SPREAD_PARAMETERS, _SPREAD_AMONG = 4, 3, 2000  # with siblings of the vendor
_FEWEST_TIMED = 3  # before a cold model is used
_FEWEST_FITTED = 4
_SHORTLIST, _SHORTLIST_NEAR, _SHORTLIST_PRIOR = 5000, 800, 3000
_SLOW_SLOPE = 0.25  # factor on a difference between two slow configurations
_NO_KNEE = 1e6  # slower than any kernel
_LEAST_STD_LOG2 = 0.015  # about 1%, the precision of timing
_UNKNOWN_STD_LOG2, _HARDLY_KNOWN_STD_LOG2 = 4.0, 1.5
_UNCHOSEN_WIDTH = 1.25  # tuned for 80% coverage on the public tuner spaces
_PRIOR_FAILURE_RATE, _PRIOR_FAILURE_WEIGHT = 0.03, 5.0
_NEAR_FAILURE_WEIGHT = 0.5  # of the pool's failure rate, against near measurements
_SIBLING_FAILURE_WEIGHT = 2.0

# Trust in siblings, tuned on the public tuner spaces.
_SIBLING_KNEE = 0.25  # quantile at which the slow part of a sibling's table begins
_SIBLING_FEATURE_WEIGHT = 0.05
_SIBLING_SLOPE_VARIANCE = 0.03
_SIBLING_OFFSET_VARIANCE = 20.0
_SIBLING_SPREAD_WEIGHT = 5.0
_LONE_SIBLING_SPREAD_LOG2 = 0.29
_GAPS_FILLED_FROM = 400  # rows of a sibling's table


@dataclass(frozen=True)
class Sibling:
    """The same configurations on another device."""

    device: str
    log2_runtime: Floats
    """In the order of the pool's configurations; nan if unknown."""
    failed: Flags
    """True if the configuration is known to fail there."""
    same_vendor: bool = True


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
    knee: float = _NO_KNEE
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

    @property
    def log2_runtime(self) -> Floats:
        """The median log2 runtime."""
        return self.at(0.0)

    @property
    def std_log2(self) -> Floats:
        """The standard deviation of the log2 runtime, with the shared error."""
        spread: Floats = np.hypot(0.5 * (self.at(1.0) - self.at(-1.0)), self.level_log2)
        return spread


class SpaceForecaster:
    """Forecasts every configuration of a fixed pool at once."""

    def __init__(
        self,
        configurations: Sequence[Parameters],
        siblings: Sequence[Sibling] = (),
        seed: int = 0,
        domain: Mapping[str, Sequence[int | float | str]] | None = None,
    ) -> None:
        """Build a cold model, or one with siblings.

        Args:
            configurations: The pool.
            siblings: Times of the same configurations on other devices.
            seed: Seed of all choices.
            domain: All values of the parameters, if the pool may lack some.
        """
        if not configurations:
            raise SetupError("a space needs at least one configuration")
        for sibling in siblings:
            if not len(sibling.log2_runtime) == len(sibling.failed) == len(configurations):
                raise SetupError(
                    f"sibling {sibling.device} has {len(sibling.log2_runtime)} times for"
                    f" {len(configurations)} configurations: give one each, in their order"
                )
        self._seed = seed
        self._levels, features = _encode(configurations, domain or {})
        self._prior = _Prior.of(siblings, features)
        self._model = self._prior.model()
        self._starts = self._first_choices()
        size = len(configurations)
        self._order: list[int] = []
        self._known = np.zeros(size, dtype=bool)
        self._log2_runtime = np.full(size, np.nan)
        self._log_cost = np.full(size, np.nan)
        self._since_fit: int | None = None
        self._shortlist: Rows = np.zeros(0, dtype=np.intp)
        self._nearby = _Nearby.none(0)
        self._predictions: Predictions | None = None

    def learn(self, index: int, log2_runtime: float | None, cost_s: float | None = None) -> None:
        """Add a measurement; None means that it failed. A second one replaces the first."""
        self._predictions = None
        if self._known[index]:
            self._order.remove(index)
            self._since_fit = None
        self._order.append(index)
        self._known[index] = True
        self._log2_runtime[index] = np.nan if log2_runtime is None else log2_runtime
        self._log_cost[index] = np.nan if cost_s is None else np.log(cost_s)
        if self._since_fit is None:
            return
        self._since_fit += 1
        if self._since_fit >= self._fit_interval():
            self._since_fit = None
            return
        if log2_runtime is not None:
            self._model.extend(index)
        self._nearby = self._nearby + self._near([index], self._shortlist)

    def _fit_interval(self) -> int:
        measured = len(self._order)
        return 2 if measured < 25 else 5 if measured < 100 else 10

    def _timed(self) -> Rows:
        order = np.array(self._order, dtype=np.intp)
        timed: Rows = order[~np.isnan(self._log2_runtime[order])]
        return timed

    def predict(self) -> Predictions:
        """Return predictions for each configuration, also before any measurement."""
        if self._predictions is None:
            self._predictions = self._predict()
        return self._predictions

    def _predict(self) -> Predictions:
        every = np.arange(len(self._known))
        timed = self._timed()
        p_ok = 1 - self._p_failure(every, self._near(self._order, every))
        if len(timed) == 0 or (self._prior.knee is None and len(timed) < _FEWEST_TIMED):
            known = self._log2_runtime[timed]
            level = float(known.mean()) if len(known) else self._prior.level_log2
            mean = level + self._prior.above_best_log2()
            unknown = _UNKNOWN_STD_LOG2 if len(timed) == 0 else _HARDLY_KNOWN_STD_LOG2
            if self._prior.knee is None:
                return Predictions(mean, np.full_like(mean, unknown), p_ok)
            spread = np.full_like(mean, self._prior.spread)
            return Predictions(mean, spread, p_ok, level_log2=unknown)
        # The mean is that of the first, diverse measurements. Later ones were chosen to be fast.
        target = self._target(timed, np.isin(timed, self._order[: len(self._starts)]))
        model = self._prior.model()
        model.log_hyper = self._model.log_hyper
        if len(timed) >= _FEWEST_FITTED:
            model.fit(timed, target.values)
        model.condition(timed, every)
        mean, std = model.posterior(target.values)
        # Widths are scaled by leave-one-out errors, shrunk by four errors of the expected size.
        # Measured configurations were chosen, and are easier to predict than the others.
        residual, expected = model.left_out(target.values)
        errors = float(((residual / expected) ** 2).sum())
        std = (
            std * _UNCHOSEN_WIDTH * np.clip(np.sqrt((errors + 4.0) / (len(timed) + 4.0)), 0.7, 3.0)
        )
        mean, std = self._in_units(mean, std, target, every)
        return Predictions(mean, std, p_ok, best_log2=target.best_log2, knee=target.knee)

    def _target(self, timed: Rows, typical: Flags | None = None) -> _Target:
        above_best = self._log2_runtime[timed] - self._log2_runtime[timed].min()
        knee = self._prior.knee
        if knee is None:
            knee = float(np.median(above_best))
        values = _compress(above_best, knee) - self._prior.mean[timed]
        centre, scale = 0.0, 1.0
        if self._prior.knee is None:
            alike = values if typical is None or not typical.any() else values[typical]
            centre, scale = float(alike.mean()), float(values.std()) + 1e-9
        return _Target(
            values=(values - centre) / scale,
            centre=centre,
            scale=scale,
            knee=knee,
            best_log2=float(self._log2_runtime[timed].min()),
        )

    def _in_units(
        self, mean: Floats, std: Floats, target: _Target, rows: Rows
    ) -> tuple[Floats, Floats]:
        return self._prior.mean[rows] + target.centre + target.scale * mean, target.scale * std

    def _near(self, indices: Sequence[int], rows: Rows) -> _Nearby:
        """Sum measurements, failures and costs near each row."""
        measured = np.array(indices, dtype=np.intp)
        if not len(measured):
            return _Nearby.none(len(rows))
        # Squared, because failures and costs correlate over shorter distances than times.
        closeness = self._model.closeness(measured, rows) ** 2
        failed = np.isnan(self._log2_runtime[measured])
        priced = ~np.isnan(self._log_cost[measured])
        return _Nearby(
            measured=closeness.sum(axis=0),
            failed=closeness[failed].sum(axis=0),
            priced=closeness[priced].sum(axis=0),
            log_cost=self._log_cost[measured[priced]] @ closeness[priced],
        )

    def _p_failure(self, rows: Rows, nearby: _Nearby) -> Floats:
        failures = len(self._order) - len(self._timed())
        prior = _PRIOR_FAILURE_RATE * _PRIOR_FAILURE_WEIGHT
        overall = (failures + prior) / (len(self._order) + _PRIOR_FAILURE_WEIGHT)
        share = self._prior.failure_share[rows]
        weight = np.where(np.isnan(share), 0.0, _SIBLING_FAILURE_WEIGHT)
        numerator = nearby.failed + weight * np.nan_to_num(share) + _NEAR_FAILURE_WEIGHT * overall
        p: Floats = numerator / (nearby.measured + weight + _NEAR_FAILURE_WEIGHT)
        return p

    def choose(self, *, per_second: bool = False) -> int:
        """Return the index with the highest expected improvement times P(ok).

        `per_second` divides by the expected cost. The answer changes only after `learn`.

        Raises:
            SetupError: Every configuration has been measured.
        """
        if self._known.all():
            raise SetupError("every configuration has been measured: there is none left to choose")
        for start in self._starts:
            if not self._known[start]:
                return start
        timed = self._timed()
        if self._prior.knee is None and len(timed) < _FEWEST_TIMED:
            return self._diverse(self._order, len(self._order))
        if len(timed) == 0:
            return int(np.argmin(np.where(self._known, np.inf, self._prior.rank)))
        target = self._target(timed)
        if self._since_fit is None:
            self._refit(timed, target)
        rows = self._shortlist
        mean, std = self._in_units(*self._model.posterior(target.values), target, rows)
        # The small constant lets P(ok) decide if no improvement is expected.
        value = (_expected_improvement(mean, std) + 1e-12) * (
            1 - self._p_failure(rows, self._nearby)
        )
        if per_second:
            value = value / self._nearby.cost_s()
        value[self._known[rows]] = -np.inf
        return int(rows[np.argmax(value)])

    def _refit(self, timed: Rows, target: _Target) -> None:
        self._since_fit = 0
        if len(timed) >= _FEWEST_FITTED:
            self._model.fit(timed, target.values)
        self._shortlist = self._new_shortlist(timed)
        self._model.condition(timed, self._shortlist)
        self._nearby = self._near(self._order, self._shortlist)

    def _new_shortlist(self, timed: Rows) -> Rows:
        """Return unmeasured rows: all if few, else likely ones, near the best, and random."""
        free = np.flatnonzero(~self._known)
        if len(free) <= _SHORTLIST:
            return free
        rng = np.random.default_rng([self._seed, len(self._order)])
        best = timed[np.argsort(self._log2_runtime[timed])[:3]]
        differing = (
            (self._levels[free][:, None] != self._levels[best][None]).sum(axis=2).min(axis=1)
        )
        chosen = rng.permutation(free[differing <= 2])[:_SHORTLIST_NEAR]
        if self._prior.knee is not None:
            likely = free[np.argsort(self._prior.rank[free], kind="stable")]
            chosen = np.union1d(chosen, likely[:_SHORTLIST_PRIOR])
        others = np.setdiff1d(free, chosen)
        return np.append(
            chosen, rng.choice(others, size=_SHORTLIST - len(chosen), replace=False)
        ).astype(np.intp)

    def _first_choices(self) -> list[int]:
        """Return the rows to measure first: siblings' favourites, or diverse ones."""
        prior = self._prior
        chosen = list(dict.fromkeys(prior.favourites))
        if prior.knee is not None and not prior.strangers:
            # The next best of the siblings that differ in several parameters.
            for index in np.argsort(prior.rank, kind="stable")[:_SPREAD_AMONG].tolist():
                if len(chosen) >= _SPREAD_STARTS:
                    break
                differing = (self._levels[chosen] != self._levels[index]).sum(axis=1)
                if differing.min() >= _SPREAD_PARAMETERS:
                    chosen.append(index)
            return chosen
        more = _DIVERSE_STARTS if prior.knee is None else _DIVERSE_AMONG_STRANGERS
        for turn in range(min(more, len(self._levels) - len(chosen))):
            chosen.append(self._diverse(chosen, turn))
        return chosen

    def _diverse(self, taken: Sequence[int], turn: int) -> int:
        """Draw a few rows and return the one that differs most from those taken."""
        rng = np.random.default_rng([self._seed, turn, 7])
        free = np.setdiff1d(np.arange(len(self._levels)), np.array(taken, dtype=np.intp))
        drawn = rng.choice(free, size=min(_DIVERSE_DRAWS, len(free)), replace=False)
        if not taken:
            return int(drawn[0])
        differing = (self._levels[drawn][:, None] != self._levels[list(taken)][None]).sum(axis=2)
        return int(drawn[np.argmax(differing.min(axis=1) + 0.01 * differing.mean(axis=1))])


@dataclass(frozen=True)
class _Target:
    """Times of configurations as the model's targets: compressed, minus the prior, scaled."""

    values: Floats
    centre: float
    scale: float
    knee: float
    best_log2: float


@dataclass(frozen=True)
class _Nearby:
    """Sums over measurements, each weighted by its closeness to a row."""

    measured: Floats
    failed: Floats
    priced: Floats
    log_cost: Floats

    @classmethod
    def none(cls, rows: int) -> _Nearby:
        return cls(*(np.zeros(rows) for _ in range(4)))

    def __add__(self, other: _Nearby) -> _Nearby:
        return _Nearby(
            self.measured + other.measured,
            self.failed + other.failed,
            self.priced + other.priced,
            self.log_cost + other.log_cost,
        )

    def cost_s(self) -> Floats:
        """Return the expected cost of measuring each row; 1 if no near row has a cost."""
        cost: Floats = np.exp(self.log_cost / np.maximum(self.priced, 1e-9))
        return cost


@dataclass(frozen=True)
class _Prior:
    """The belief before any measurement on this device, and its model."""

    features: Floats
    """Per configuration: its parameters, then each sibling's times."""
    weights: Floats | None
    linear: Floats | None
    mean: Floats
    """Compressed log2 above the fastest; zero when cold."""
    knee: float | None
    """The start of the compression; None when cold, which means the median of the measured."""
    spread: float
    """The standard deviation between siblings on the fast configurations, in log2."""
    level_log2: float
    failure_share: Floats
    """The share of the siblings with a result that failed; nan if none has a result."""
    favourites: tuple[int, ...]
    strangers: bool
    """True if every sibling is of another vendor."""

    @classmethod
    def of(cls, siblings: Sequence[Sibling], features: Floats) -> _Prior:
        useful = [sibling for sibling in siblings if np.isfinite(sibling.log2_runtime).any()]
        if not useful:
            size = len(features)
            nothing = np.full(size, np.nan)
            return cls(
                features, None, None, np.zeros(size), None, 0.0, 0.0, nothing, (), strangers=True
            )
        akin = np.array([sibling.same_vendor for sibling in useful])
        strangers = not akin.any()
        akin = akin | strangers
        filled = [_filled(sibling, features) for sibling in useful]
        tables = np.array([table for table, _ in filled])
        knee = float(np.median(np.quantile(tables, _SIBLING_KNEE, axis=1)))
        tables = _compress(tables, knee)
        mean = tables[akin].mean(axis=0)
        fast = np.argsort(mean, kind="stable")[: max(1, len(mean) // 5)]
        spread = _LONE_SIBLING_SPREAD_LOG2
        if len(tables) > 1:
            spread = float(np.sqrt(tables[:, fast].var(axis=0, ddof=1).mean()))
        guesswork = np.mean([variance[fast].mean() for _, variance in filled])
        standard = tables - tables.mean(axis=1, keepdims=True)
        standard = (standard / (standard.std(axis=1, keepdims=True) + 1e-9)).T
        failed = np.array([sibling.failed for sibling in useful])
        tried = failed | [np.isfinite(sibling.log2_runtime) for sibling in useful]
        trust = np.where([sibling.same_vendor for sibling in useful], 1.0, 0.5)
        with np.errstate(invalid="ignore"):
            failure_share = (trust @ failed) / (trust @ tried)
        columns = features.shape[1]
        prior = cls(
            features=np.hstack([features, standard]),
            weights=np.append(
                np.full(columns, columns**-0.5), np.full(len(useful), _SIBLING_FEATURE_WEIGHT)
            ),
            linear=standard * np.sqrt(_SIBLING_SLOPE_VARIANCE / len(useful)),
            mean=mean,
            knee=knee,
            spread=float(np.sqrt(spread**2 + 0.07**2 + guesswork)),
            level_log2=float(
                np.median([np.nanmin(useful[k].log2_runtime) for k in np.flatnonzero(akin)])
            ),
            failure_share=failure_share,
            favourites=(),
            strangers=strangers,
        )
        first = [prior.rank, *(table + 0.3 * prior.rank for table in tables[akin])]
        return replace(prior, favourites=tuple(int(np.argmin(ranks)) for ranks in first))

    @property
    def rank(self) -> Floats:
        """Sort key of the siblings' order: the failing configurations come last."""
        return self.mean + 8.0 * (np.nan_to_num(self.failure_share) > 0)

    def above_best_log2(self) -> Floats:
        return self.mean if self.knee is None else _expand(self.mean, self.knee)

    def model(self) -> GaussianProcess:
        if self.knee is None:
            return GaussianProcess(self.features)
        return GaussianProcess(
            self.features,
            self.weights,
            self.linear,
            _SIBLING_OFFSET_VARIANCE,
            (_SIBLING_SPREAD_WEIGHT, self.spread**2),
        )


def _filled(sibling: Sibling, features: Floats) -> tuple[Floats, Floats]:
    """Return a sibling's log2 times above its fastest, gaps filled by a model, failures as slow."""
    times = sibling.log2_runtime
    timed = np.flatnonzero(np.isfinite(times))
    above = times - times[timed].min()
    unknown = ~np.isfinite(times) & ~sibling.failed
    variance = np.zeros(len(times))
    if unknown.any() and len(timed) >= _FEWEST_FITTED:
        # A part of the table shows its shape. All fast rows are in this part.
        order = timed[np.argsort(times[timed], kind="stable")]
        kept = order
        if len(order) > _GAPS_FILLED_FROM:
            half = _GAPS_FILLED_FROM // 2
            rest = order[half:]
            kept = np.append(order[:half], rest[:: -(-len(rest) // half)])
        knee = float(np.median(above[kept]))
        values = _compress(above[kept], knee)
        centre, scale = float(values.mean()), float(values.std()) + 1e-9
        model = GaussianProcess(features)
        model.fit(kept, (values - centre) / scale)
        model.condition(kept, np.flatnonzero(unknown))
        guessed, std = model.posterior((values - centre) / scale)
        variance[unknown] = (scale * std) ** 2
        above[unknown] = _expand(centre + scale * guessed, knee)
        # A sample may lack the fastest row, so the level is that of the filled table.
        above = above - np.quantile(above[~sibling.failed], 0.002)
    slow = float(np.nanquantile(above, 0.75))
    return np.where(np.isfinite(above), above, slow), variance


def _compress(above_best: Floats, knee: float) -> Floats:
    return np.where(above_best <= knee, above_best, knee + _SLOW_SLOPE * (above_best - knee))


def _expand(compressed: Floats, knee: float) -> Floats:
    return np.where(compressed <= knee, compressed, knee + (compressed - knee) / _SLOW_SLOPE)


def _expected_improvement(mean: Floats, std: Floats) -> Floats:
    """Return the expected improvement below zero, the level of the best so far."""
    ratio = -mean / std
    density = np.exp(-0.5 * ratio**2) / np.sqrt(2 * np.pi)
    improvement: Floats = std * (ratio * ndtr(ratio) + density)
    return improvement


def _encode(
    configurations: Sequence[Parameters], domain: Mapping[str, Sequence[int | float | str]]
) -> tuple[NDArray[np.intp], Floats]:
    """Return the level of each parameter that varies, and standardised features.

    Numbers are features by their logarithm. A number with three or four values may be a category,
    so it gets indicators too. Text gets indicators only.
    """
    names = sorted({name for point in configurations for name in point})
    levels: list[NDArray[np.intp]] = []
    columns: list[Floats] = []
    for name in names:
        values = [point.get(name, "") for point in configurations]
        usual = list(domain.get(name, values))
        distinct = sorted({*values, *usual}, key=lambda value: (isinstance(value, str), value))
        if len(distinct) == 1:
            continue
        level_of = {value: level for level, value in enumerate(distinct)}
        level, usual_level = (
            np.array([level_of[value] for value in column], dtype=np.intp)
            for column in (values, usual)
        )
        levels.append(level)
        textual = any(isinstance(value, str) for value in distinct)
        scales: list[Floats] = []
        if not textual:
            number = np.array(distinct, dtype=np.float64)
            scales.append(np.copysign(np.log2(1 + np.abs(number)), number))
        if textual or 2 < len(distinct) <= 4:
            scales.extend(np.eye(len(distinct)))
        for scale in scales:
            centre, width = scale[usual_level].mean(), scale[usual_level].std() + 1e-9
            columns.append((scale[level] - centre) / width)
    if not columns:
        return np.zeros((len(configurations), 1), dtype=np.intp), np.zeros((len(configurations), 1))
    return np.stack(levels, axis=1), np.stack(columns, axis=1)
