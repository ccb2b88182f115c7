"""Forecasts of a fixed pool of configurations, and the choice of the next one to measure.

Cold, the forecaster learns from the pool's own measurements alone. With siblings (times of the same
configurations on other devices) it starts from their mean and learns the differences (`_prior.py`),
as long as they are trusted (`_belief.py`). Estimated times are a sibling too. While no choice
improves on the best, every second one is made without siblings, and every seventh is a probe, drawn
at random. Errors at probes, unlike those at rows that were chosen to be fast, are those of any row.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import numpy as np
from scipy.special import ndtr

from kernelcast.errors import SetupError
from kernelcast.forecasters._belief import Belief, Beliefs
from kernelcast.forecasters._encoding import Domain, Encoding, Levels
from kernelcast.forecasters._failures import FailureModel
from kernelcast.forecasters._gaussian import Floats, Rows
from kernelcast.forecasters._prior import (
    FEWEST_FITTED,
    NO_KNEE,
    Flags,
    Predictions,
    Prior,
    Sibling,
    Target,
    unchosen_width,
)
from kernelcast.types import Parameters

__all__ = ["Predictions", "Sibling", "SpaceForecaster"]

_DIVERSE_STARTS = 4
_DIVERSE_AMONG_STRANGERS = 4  # if all siblings are of another vendor
_DIVERSE_DRAWS = 30
_SPREAD_STARTS, _SPREAD_PARAMETERS, _SPREAD_AMONG = 4, 3, 2000  # with siblings of the vendor
_PATIENCE = 3  # measurements without a better one, before a cold forecaster chooses too
_BETTER_LOG2 = 0.005
_WIDER_WHEN_STALE, _WIDEST = 0.1, 2.0
_PROBE_FROM, _PROBE_EVERY = 10, 7  # measurements; odd, as every second choice is made cold
_PROBE_DRAWS = 50
_EARLY = 10  # measurements; the trust in siblings is found anew after each of them
_DOUBT, _CONTRASTS = 0.1, (3, 5, 7)  # of the siblings; what is measured then tells more
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
        self._features = features
        self._prior = Prior.of(siblings, features)
        self._failures = {
            is_trusting: (FailureModel(encoding.sizes, features, shares), shares)
            for is_trusting, shares in (
                (True, self._prior.failure_share),
                (False, np.full(len(features), np.nan)),
            )
        }
        self._beliefs = Beliefs(self._prior, features)
        self.blind: set[int] = set()
        """Rows that were chosen regardless of their forecasts, as if drawn at random."""
        self._starts = self._first_choices()
        size = len(configurations)
        self._order: list[int] = []
        self._known = np.zeros(size, dtype=bool)
        self._log2_runtime = np.full(size, np.nan)
        self._log_cost = np.full(size, np.nan)
        self._since_fit: int | None = None
        self._shortlist: Rows = np.zeros(0, dtype=np.intp)
        self._predictions: Predictions | None = None
        self._stale = 0
        self._best_log2 = np.inf
        self.expected_gain = 1.0
        """The share of the best time that the last choice was expected to gain; 1 if unknown."""

    @property
    def levels(self) -> Levels:
        """The place of each parameter's value among its values, one row per configuration."""
        return self._levels

    @property
    def trusts_siblings(self) -> bool:
        """Whether forecasts start from the siblings' times at present."""
        return self._beliefs.is_trusting

    def learn(self, index: int, log2_runtime: float | None, cost_s: float | None = None) -> None:
        """Add a measurement; None means that it failed. A second one replaces the first."""
        self._predictions = None
        is_better = log2_runtime is not None and log2_runtime < self._best_log2 - _BETTER_LOG2
        self._stale = 0 if is_better else self._stale + (not self._known[index])
        if log2_runtime is not None:
            self._best_log2 = min(self._best_log2, log2_runtime)
        if self._known[index]:
            self._since_fit = None
        else:
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
            self._beliefs.extend(index)

    def _fit_interval(self) -> int:
        measured = len(self._order)
        if self._prior.knee is not None and measured < _EARLY:
            return 1
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
        p_ok = 1 - self._p_failure(every)
        if not self._prior.learns_from(len(timed)):
            return self._prior.predictions(times, p_ok)
        beliefs = self._beliefs
        if self._since_fit is None:
            # Forecasts leave no trace in later choices.
            beliefs = deepcopy(beliefs)
            beliefs.fit(timed, times, every[:0])
        # Slow rows are forecast as well as fast ones, so nothing is compressed.
        prior = beliefs.held.prior.expanded()
        blind = np.isin(timed, list(self.blind))
        target = Target.of(times, prior, timed, blind, NO_KNEE)
        model = prior.model()
        if len(timed) >= FEWEST_FITTED:
            model.fit(timed, target.values)
        model.condition(timed)
        model.look(every)
        widening = unchosen_width(model, target.values, blind)
        return target.predictions(model, prior.mean, p_ok, widening)

    def _p_failure(self, rows: Rows) -> Floats:
        """Return P(failure) of rows. Siblings whose times mislead are not believed here either."""
        model, shares = self._failures[self._beliefs.is_trusting]
        measured = np.array(self._order, dtype=np.intp)
        failed = np.isnan(self._log2_runtime[measured])
        model.fit(self._features[measured], shares[measured], failed)
        return model.p_failure(self._features[rows], shares[rows])

    def _cost_s(self, rows: Rows, belief: Belief) -> Floats:
        """Return the expected cost of measuring each row; 1 if none has a cost."""
        measured = np.array(self._order, dtype=np.intp)
        priced = measured[~np.isnan(self._log_cost[measured])]
        if not len(priced):
            return np.ones(len(rows))
        # Squared, because costs correlate over shorter distances than times.
        closeness = belief.model.closeness(priced, rows) ** 2
        total = np.maximum(closeness.sum(axis=0), 1e-9)
        cost_s: Floats = np.exp(self._log_cost[priced] @ closeness / total)
        return cost_s

    def choose(self, *, per_second: bool = False, pending: Sequence[int] = ()) -> int:
        """Return the index with the highest expected improvement times P(ok).

        `per_second` divides by the expected cost. `pending` rows are being measured: they are left
        out, and the closer another row is to one of them, the less it is worth. The answer changes
        only after `learn`, or with `pending`.

        Raises:
            SetupError: Every configuration has been measured.
        """
        taken = self._known.copy()
        taken[list(pending)] = True
        if taken.all():
            raise SetupError("every configuration has been measured: there is none left to choose")
        self.expected_gain = 1.0
        begun = [*self._order, *pending]
        timed = self._timed()
        times = self._log2_runtime[timed]
        is_cold = self._prior.knee is None
        if self._since_fit is None and self._prior.learns_from(len(timed)):
            self._refit(timed, times)
        doubt = 1 - self._beliefs.trust
        if not is_cold and doubt > _DOUBT and len(begun) in _CONTRASTS:
            return self._diverse(begun, len(begun))
        if len(begun) < len(self._starts) and (is_cold or doubt < 0.5):
            return next(start for start in self._starts if not taken[start])
        if not self._prior.learns_from(len(timed)) and is_cold:
            return self._diverse(begun, len(begun))
        if len(timed) == 0:
            return int(np.argmin(np.where(taken, np.inf, self._prior.rank)))
        belief = self._beliefs.held
        turns = self._stale - _PATIENCE
        if turns > 0 and turns % 2:
            belief = self._beliefs.cold
        rows = self._shortlist
        # The small constant lets P(ok) decide if no improvement is expected.
        mean, std = belief.posterior(timed, times, rows)
        # The longer nothing improves, the less the model is believed.
        std = std * min(1.0 + _WIDER_WHEN_STALE * max(0, turns), _WIDEST)
        value = _expected_improvement(mean, std) + 1e-12
        value *= 1 - self._p_failure(rows)
        value[taken[rows]] = 0.0
        self.expected_gain = float(1 - 2.0 ** -value.max())
        # Counted by what was begun, so that a batch has no more probes than its share.
        since = len(begun) - _PROBE_FROM
        if turns > 0 and since >= 0 and since % _PROBE_EVERY == 0:
            return self._probe(taken)
        if pending:
            closeness = belief.model.closeness(np.array(pending, dtype=np.intp), rows)
            value *= np.prod(1 - closeness, axis=0)
        if per_second:
            value /= self._cost_s(rows, belief)
        value[taken[rows]] = -1.0
        if not (value >= 0).any():
            return int(np.flatnonzero(~taken)[0])
        return int(rows[np.argmax(value)])

    def _refit(self, timed: Rows, times: Floats) -> None:
        self._since_fit = 0
        self._shortlist = self._new_shortlist(timed)
        self._beliefs.fit(timed, times, self._shortlist)

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
            # One that the siblings do not favour, without which nothing could contradict them.
            if len(chosen) < len(self._levels):
                chosen.insert(1, self._diverse(chosen, 0))
            return chosen
        more = _DIVERSE_STARTS if prior.knee is None else _DIVERSE_AMONG_STRANGERS
        for turn in range(min(more, len(self._levels) - len(chosen))):
            chosen.append(self._diverse(chosen, turn))
        return chosen

    def _probe(self, taken: Flags) -> int:
        """Draw a row that will probably run: its error shows how wide intervals must be."""
        rng = np.random.default_rng([self._seed, int(taken.sum()), 9])
        drawn = rng.permutation(np.flatnonzero(~taken))[:_PROBE_DRAWS]
        return self._mark_blind(int(drawn[np.argmax(self._p_failure(drawn) < 0.5)]))

    def _mark_blind(self, row: int) -> int:
        self.blind.add(row)
        return row

    def _diverse(self, taken: Sequence[int], turn: int) -> int:
        """Draw a few rows and return the one that differs most from those taken."""
        rng = np.random.default_rng([self._seed, turn, 7])
        free = np.setdiff1d(np.arange(len(self._levels)), np.array(taken, dtype=np.intp))
        drawn = rng.choice(free, size=min(_DIVERSE_DRAWS, len(free)), replace=False)
        if not taken:
            return self._mark_blind(int(drawn[0]))
        differing = (self._levels[drawn][:, None] != self._levels[list(taken)][None]).sum(axis=2)
        spread = differing.min(axis=1) + 0.01 * differing.mean(axis=1)
        return self._mark_blind(int(drawn[np.argmax(spread)]))


def _expected_improvement(mean: Floats, std: Floats) -> Floats:
    """Return the expected improvement below zero, the level of the best so far."""
    ratio = -mean / std
    density = np.exp(-0.5 * ratio**2) / np.sqrt(2 * np.pi)
    improvement: Floats = std * (ratio * ndtr(ratio) + density)
    return improvement
