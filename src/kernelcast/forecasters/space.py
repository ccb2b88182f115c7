"""Forecasts of a fixed pool of configurations, and the choice of the next one to measure.

Cold, the forecaster learns from the pool's own measurements alone. With siblings (times of the same
configurations on other devices) it starts from their mean and learns the differences (`_prior.py`).
Estimated times are a sibling too. They may mislead, so a cold forecaster makes every second choice
while no choice improves on the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from kernelcast.errors import SetupError
from kernelcast.forecasters._encoding import Domain, Encoding
from kernelcast.forecasters._gaussian import Floats, Rows
from kernelcast.forecasters._prior import (
    FEWEST_FITTED,
    FEWEST_TIMED,
    Predictions,
    Prior,
    Sibling,
    Target,
    p_failure,
    width,
)
from kernelcast.types import Parameters

__all__ = ["Predictions", "Sibling", "SpaceForecaster"]

_DIVERSE_STARTS = 8
_DIVERSE_AMONG_STRANGERS = 4  # if all siblings are of another vendor
_DIVERSE_DRAWS = 30
_SPREAD_STARTS, _SPREAD_PARAMETERS, _SPREAD_AMONG = 4, 3, 2000  # with siblings of the vendor
_PATIENCE = 3  # measurements without a better one, before a cold forecaster chooses too
_BETTER_LOG2 = 0.005
_COLD_STARTS = 3  # of that forecaster
_SHORTLIST, _SHORTLIST_NEAR, _SHORTLIST_PRIOR = 5000, 800, 3000


class SpaceForecaster:
    """Forecasts every configuration of a fixed pool at once."""

    def __init__(
        self,
        configurations: Sequence[Parameters],
        siblings: Sequence[Sibling] = (),
        seed: int = 0,
        domain: Domain | None = None,
    ) -> None:
        """Build a cold model, or one with siblings.

        Args:
            configurations: The pool.
            siblings: Times of the same configurations on other devices, or estimates.
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
        encoding = Encoding.of(configurations, domain or {})
        self._levels, features = encoding.encode(configurations)
        self._prior = Prior.of(siblings, features)
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
        self._stale = 0
        self._best_log2 = np.inf
        self._cold: SpaceForecaster | None = None
        if self._prior.is_estimated:
            self._cold = SpaceForecaster(configurations, (), seed, domain)
            del self._cold._starts[_COLD_STARTS:]

    def learn(self, index: int, log2_runtime: float | None, cost_s: float | None = None) -> None:
        """Add a measurement; None means that it failed. A second one replaces the first."""
        self._predictions = None
        is_better = log2_runtime is not None and log2_runtime < self._best_log2 - _BETTER_LOG2
        self._stale = 0 if is_better else self._stale + 1
        if log2_runtime is not None:
            self._best_log2 = min(self._best_log2, log2_runtime)
        if self._cold is not None:
            self._cold.learn(index, log2_runtime, cost_s)
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
        times = self._log2_runtime[timed]
        p_ok = 1 - self._p_failure(every, self._near(self._order, every))
        if not self._prior.learns_from(len(timed)):
            return self._prior.predictions(times, p_ok)
        # The mean is that of the first, diverse measurements. Later ones were chosen to be fast.
        typical = np.isin(timed, self._order[: len(self._starts)])
        target = Target.of(times, self._prior, timed, typical)
        model = self._prior.model()
        model.log_hyper = self._model.log_hyper
        if len(timed) >= FEWEST_FITTED:
            model.fit(timed, target.values)
        model.condition(timed)
        model.look(every)
        return target.predictions(model, self._prior.mean, p_ok, width(model, target.values))

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
        share = self._prior.failure_share[rows]
        return p_failure(nearby.failed, nearby.measured, share, failures, len(self._order))

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
        turns = self._stale - _PATIENCE
        if self._cold is not None and turns > 0 and turns % 2:
            return self._cold.choose(per_second=per_second)
        timed = self._timed()
        if self._prior.knee is None and len(timed) < FEWEST_TIMED:
            return self._diverse(self._order, len(self._order))
        if len(timed) == 0:
            return int(np.argmin(np.where(self._known, np.inf, self._prior.rank)))
        target = Target.of(self._log2_runtime[timed], self._prior, timed)
        if self._since_fit is None:
            self._refit(timed, target)
        rows = self._shortlist
        mean, std = target.in_units(*self._model.posterior(target.values), self._prior.mean[rows])
        # The small constant lets P(ok) decide if no improvement is expected.
        value = (_expected_improvement(mean, std) + 1e-12) * (
            1 - self._p_failure(rows, self._nearby)
        )
        if per_second:
            value = value / self._nearby.cost_s()
        value[self._known[rows]] = -np.inf
        return int(rows[np.argmax(value)])

    def _refit(self, timed: Rows, target: Target) -> None:
        self._since_fit = 0
        if len(timed) >= FEWEST_FITTED:
            self._model.fit(timed, target.values)
        self._shortlist = self._new_shortlist(timed)
        self._model.condition(timed)
        self._model.look(self._shortlist)
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


def _expected_improvement(mean: Floats, std: Floats) -> Floats:
    """Return the expected improvement below zero, the level of the best so far."""
    ratio = -mean / std
    density = np.exp(-0.5 * ratio**2) / np.sqrt(2 * np.pi)
    improvement: Floats = std * (ratio * ndtr(ratio) + density)
    return improvement
