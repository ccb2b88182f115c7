"""Policies: they drop, trust, measure or audit each candidate.

A policy decides from the forecasts and the run's `View` alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelcast.types import SMALLEST_CLAIM_LOG2, Candidate, Decision, View

_P_OK_TO_TRUST = 0.8
_LARGEST_STALE_AUDIT_SHARE = 0.25
_AUDIT_SHARE_BEFORE_BOUND = 0.5
_PACE = 4  # at most one in four open candidates is measured per decision
_LEVELS = np.linspace(0.1, 0.9, 9)
_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class MeasureAll:
    """Measure every candidate, in the order of proposal; the baseline."""

    pool_size: int = 1
    name: str = "measure_all"

    def decide(self, pool: Sequence[Candidate], view: View) -> dict[str, Decision]:
        """Measure the oldest candidates, one per free slot."""
        oldest = sorted(pool, key=lambda candidate: candidate.ordinal)[: view.free_slots]
        decision = Decision(action="measure", score=1.0, reason="everything is measured")
        return {candidate.kernel_id: decision for candidate in oldest}


@dataclass(frozen=True)
class TopK:
    """Measure the k candidates of each full pool with the highest forecast mean, as the paper."""

    k: int = 4
    pool_size: int = 16
    name: str = "top_k"

    def decide(self, pool: Sequence[Candidate], view: View) -> dict[str, Decision]:
        """Rank a full pool once, or a smaller one when proposals are exhausted."""
        if view.free_slots < 1 or (len(pool) < self.pool_size and not view.proposals_exhausted):
            return {}
        ranked = sorted(pool, key=lambda candidate: (-_expected_log2(candidate), candidate.ordinal))
        return {
            candidate.kernel_id: Decision(
                action="measure" if rank < self.k else "drop",
                score=_expected_log2(candidate),
                reason=f"rank {rank + 1} of {len(ranked)}, the top {self.k} are measured",
            )
            for rank, candidate in enumerate(ranked)
        }


@dataclass(frozen=True)
class _ByForecast(ABC):
    """Base of the policies that use forecasts; each has its own score, bar and gain.

    - Audits come first: the run's seed draws a share of the measurements, which go to the newest
      candidates whatever their forecasts. No forecast has influenced that choice, so calibration
      is measured without bias. The share grows once `stale` exceeds `patience`.
    - A candidate that scores below the bar, or was objected to, is dropped. It is trusted instead,
      as an unmeasured parent, if its forecast is sure and close to the incumbent.
      `trust_doubt_log2` bounds the doubt that adds up along a chain of unmeasured kernels.
    - The rest are ranked by gain and measured as slots become free: per decision at most one in
      four open candidates, and one in four of the measurements left, so that early measurements
      improve later choices.
    - At least one of a full pool of several is measured. Otherwise a forecaster that rules out
      everything would never learn better.
    """

    pool_size: int = 64
    audit_share: float = 0.1
    patience: int = 25
    trust_doubt_log2: float = 0.16
    trust_within_log2: float = 0.3

    def decide(self, pool: Sequence[Candidate], view: View) -> dict[str, Decision]:
        """Decide on a full pool, or on a smaller one when proposals are exhausted."""
        if view.free_slots < 1 or (len(pool) < self.pool_size and not view.proposals_exhausted):
            return {}
        slots = _paced_slots(pool, view)
        decisions = self._audits(pool, view, slots)
        audited = len(decisions)
        slots -= audited
        rest = [candidate for candidate in pool if candidate.kernel_id not in decisions]
        gains = {candidate.kernel_id: self._gain(candidate, view) for candidate in rest}

        def place(candidate: Candidate) -> tuple[bool, float, int]:
            return _is_objected(candidate), -gains[candidate.kernel_id], candidate.ordinal

        rest.sort(key=place)
        bar = self.bar(view)
        contenders: list[Candidate] = []
        for candidate in rest:
            score = -math.inf if _is_objected(candidate) else self._score(candidate, view)
            if candidate.forecast is not None and score < bar:
                decisions[candidate.kernel_id] = self._turn_away(candidate, score, bar, view)
            else:
                contenders.append(candidate)
        if not contenders and not audited and self.pool_size > 1:
            contenders = rest[:1]
        worth_it = self._worth_measuring(
            [gains[candidate.kernel_id] for candidate in contenders], view
        )
        for candidate in contenders[: min(slots, worth_it)]:
            gain = gains[candidate.kernel_id]
            decisions[candidate.kernel_id] = Decision(
                action="measure", score=gain, reason=self._why(candidate, bar, view)
            )
        room = self._room(len(contenders), slots, view)
        for candidate in contenders[room:]:
            gain, reason = gains[candidate.kernel_id], f"outranked by {room} open candidates"
            decisions[candidate.kernel_id] = Decision(action="drop", score=gain, reason=reason)
        return decisions

    @abstractmethod
    def _score(self, candidate: Candidate, view: View) -> float:
        """Return the score that is compared with the bar."""

    @abstractmethod
    def bar(self, view: View) -> float:
        """Return the score below which a candidate is dropped or trusted."""

    def _gain(self, candidate: Candidate, view: View) -> float:
        """Return the value by which the remaining candidates are ranked."""
        return _expected_improvement(candidate, view)

    def _worth_measuring(self, gains: Sequence[float], view: View) -> int:
        """Return how many of the ranked candidates to measure now, if slots allow."""
        del view
        return len(gains)

    def _room(self, contenders: int, slots: int, view: View) -> int:
        """Return the number of contenders to keep; all by default."""
        del slots, view
        return contenders

    def _audit_share_now(self, view: View) -> float:
        raised = self.audit_share * max(1.0, view.stale / max(self.patience, 1))
        return max(self.audit_share, min(raised, _LARGEST_STALE_AUDIT_SHARE))

    def _audits(self, pool: Sequence[Candidate], view: View, slots: int) -> dict[str, Decision]:
        """Draw the audits; none if the newest candidates were in an earlier pool."""
        if view.proposals_exhausted:
            return {}
        share = self._audit_share_now(view)
        draws = [
            np.random.default_rng([view.seed, view.measured + slot]).random() < share
            for slot in range(slots)
        ]
        newest = sorted(pool, key=lambda candidate: -candidate.ordinal)[: sum(draws)]
        decision = Decision(action="audit", score=share, reason="blind, to check the forecasts")
        return {candidate.kernel_id: decision for candidate in newest}

    def _turn_away(self, candidate: Candidate, score: float, bar: float, view: View) -> Decision:
        forecast = candidate.forecast
        assert forecast is not None, "only a forecast can be below the bar"
        if forecast.objection:
            return Decision(action="drop", score=score, reason=f"objected: {forecast.objection}")
        density = forecast.against_reference()
        gap = view.incumbent_log2 - density.quantile(0.5)
        doubt = math.hypot(density.std(), candidate.chain_std)
        if (
            doubt <= self.trust_doubt_log2
            and gap <= self.trust_within_log2
            and forecast.p_ok >= _P_OK_TO_TRUST
        ):
            reason = f"surely within {2**gap:.2f}x of the best: a parent, not a result"
            return Decision(action="trust", score=score, reason=reason)
        return Decision(action="drop", score=score, reason=self._why_not(score, bar, view))

    def _why(self, candidate: Candidate, bar: float, view: View) -> str:
        del bar
        if candidate.forecast is None:
            return "no forecast"
        return f"P(new best) {_new_best_chance(candidate, view):.2f}, the most to gain"

    def _why_not(self, score: float, bar: float, view: View) -> str:
        del view
        return f"P(new best) {score:.3f}, below {bar:.3f}"


@dataclass(frozen=True)
class _WithTurnover(_ByForecast):
    """Drops the last contenders while more kernels are proposed.

    Each decision makes room for at least `turnover` new candidates, or for half of a small pool.
    """

    turnover: int = 8

    def _room(self, contenders: int, slots: int, view: View) -> int:
        if view.proposals_exhausted:
            return contenders
        return max(self.pool_size - min(self.turnover, self.pool_size // 2), slots)


@dataclass(frozen=True)
class Selective(_WithTurnover):
    """Trust the forecast if it is sure, measure if it is not.

    A candidate whose probability of a new best is below `drop_below` is dropped or trusted; the
    rest are ranked by expected improvement. Those that are not measured now stay open and are
    judged again later, except for the last `turnover`, which make room for new candidates.
    """

    drop_below: float = 0.01
    name: str = "selective"

    def _score(self, candidate: Candidate, view: View) -> float:
        return _new_best_chance(candidate, view)

    def bar(self, view: View) -> float:
        """Return `drop_below`, a probability of a new best."""
        del view
        return self.drop_below


@dataclass(frozen=True)
class Conformal(_ByForecast):
    """Drop as many candidates as a bound on missed new bests allows, according to the audits.

    `miss_target` is the share of the candidates rejected by forecast (dropped or trusted) that may
    have been a new best. The bar on P(new best) is the highest b for which the n audits below it,
    of which k were a new best, keep (k + 1) / (n + 1) within the target. An objection counts as the
    lowest score, so audits test objections too.

    New bests may be so rare that the target allows to reject nearly everything. The bar is never
    above `drop_below`, so a candidate with that chance of a new best is measured all the same.

    Guarantee: if a candidate is exchangeable with the N audits, E[missed * (N + 1) / (n + 1)] <=
    miss_target, whether the forecasts are right or wrong and although the bar was chosen from the
    same audits. (n + 1) / (N + 1) estimates the share that is rejected, so misses are counted per
    rejected candidate. The argument is that of conformal selection: going down from the highest
    bar, 1{missed} / (k + 1) is a supermartingale, which begins at 1 / (N + 1).

    Limits: the bound is on the average, not on each run. A run's candidates are not quite
    exchangeable: new bests become rarer, so old audits overstate the misses, which is safe, but a
    proposer with a new idea makes them more common until audits show it; and an open candidate is
    judged several times and rejected at its lowest score, an audited one only once.

    With fewer than 1 / target - 1 audits, nothing is dropped, half of the measurements are audits
    (all of them if the pool is one candidate), and the reasons say that the bound cannot be held
    yet.
    """

    miss_target: float = 0.05
    drop_below: float = 1.0
    name: str = "conformal"

    def __post_init__(self) -> None:
        """Check the target."""
        for name in ("miss_target", "drop_below"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is between 0 and 1, not {getattr(self, name)}")

    def _score(self, candidate: Candidate, view: View) -> float:
        # Audits count any gain over the incumbent as a new best.
        return _chance_above(candidate, view.incumbent_log2)

    def bar(self, view: View) -> float:
        """Return the highest bar that the audits support; minus infinity if there is none."""
        audits = sorted(view.audits, key=lambda audit: audit.p_new_best)
        scores = np.array([audit.p_new_best for audit in audits])
        won = np.cumsum([audit.new_best for audit in audits])
        below = np.arange(1, len(audits) + 1)
        # Nothing is known above the highest audited score.
        bars = np.append(scores[1:], np.nextafter(scores[-1:], np.inf))
        bars = np.minimum(bars, self.drop_below)
        held = (won + 1 <= self.miss_target * (below + 1)) & (bars > scores)
        return float(bars[held][-1]) if held.any() else -math.inf

    def _audit_share_now(self, view: View) -> float:
        share = super()._audit_share_now(view)
        if self.bar(view) > -math.inf:
            return share
        # Where each candidate is a pool, none is dropped yet: all are measured blind.
        return 1.0 if self.pool_size == 1 else max(share, _AUDIT_SHARE_BEFORE_BOUND)

    def _why(self, candidate: Candidate, bar: float, view: View) -> str:
        reason = super()._why(candidate, bar, view)
        if bar > -math.inf:
            return reason
        return f"{reason}; {len(view.audits)} audits cannot hold {self.miss_target:.1%} misses yet"

    def _why_not(self, score: float, bar: float, view: View) -> str:
        return (
            f"{super()._why_not(score, bar, view)}: of such at most {self.miss_target:.1%} are "
            f"missed, by {len(view.audits)} audits"
        )


@dataclass(frozen=True)
class ValueOfInformation(_WithTurnover):
    """Measure the candidates with the highest expected improvement per cost, if it pays.

    - Cost of a measurement, relative to that of the reference kernel: `fixed_share` is the same for
      all (compiling, inputs, the reference's calls), the rest grows with the kernel's run time. A
      failing kernel costs little more than the fixed part.
    - Price: device time at the user's rate, compared with what a kernel twice as fast is worth
      (`doubling_usd`). A candidate that promises less than its price is dropped or trusted.
    - Alternatives: a measurement saved now can be spent on the best of the next `turnover`
      candidates. Their expected maximum is estimated from the open ones, and a candidate must beat
      it to be measured now; the best open one always is. The others wait as in `selective`.
    """

    fixed_share: float = 0.5
    device_usd_per_hour: float = 3.0
    measurement_s: float = 5.0
    doubling_usd: float = 100.0
    name: str = "value_of_information"

    def _score(self, candidate: Candidate, view: View) -> float:
        return self._gain(candidate, view)

    def bar(self, view: View) -> float:
        """Return the expected log2 improvement that is worth the price of a measurement."""
        del view
        return self.device_usd_per_hour * self.measurement_s / _SECONDS_PER_HOUR / self.doubling_usd

    def _gain(self, candidate: Candidate, view: View) -> float:
        improvement = _expected_improvement(candidate, view)
        if candidate.forecast is None:
            return improvement
        run_times = 2.0 ** -candidate.forecast.against_reference().quantile(_LEVELS)
        share_run = (1.0 - self.fixed_share) * candidate.forecast.p_ok
        return improvement / (self.fixed_share + share_run * float(run_times.mean()))

    def _worth_measuring(self, gains: Sequence[float], view: View) -> int:
        if view.proposals_exhausted or not gains:
            return len(gains)
        # Probabilities that the highest of `turnover` draws with replacement is the r-th lowest.
        shares = np.linspace(0.0, 1.0, len(gains) + 1) ** max(self.turnover, 1)
        elsewhere = float(np.diff(shares) @ np.sort(gains))
        return max(1, sum(gain >= elsewhere for gain in gains))

    def _why(self, candidate: Candidate, bar: float, view: View) -> str:
        if candidate.forecast is None:
            return "no forecast"
        return f"log2 gain {self._gain(candidate, view):.2g} per cost, the most; price {bar:.2g}"

    def _why_not(self, score: float, bar: float, view: View) -> str:
        del view
        return f"log2 gain {score:.2g} per cost, below the price {bar:.2g}"


def _paced_slots(pool: Sequence[Candidate], view: View) -> int:
    if view.proposals_exhausted:
        return view.free_slots
    most = min(len(pool), view.measurements_left) / _PACE
    return min(view.free_slots, max(1, int(most)))


def _is_objected(candidate: Candidate) -> bool:
    return candidate.forecast is not None and bool(candidate.forecast.objection)


def _expected_log2(candidate: Candidate) -> float:
    """Return the forecast mean against the reference; -inf without a forecast."""
    forecast = candidate.forecast
    if forecast is None or forecast.objection:
        return -math.inf
    return forecast.against_reference().mean()


def _threshold(view: View) -> float:
    """Return the log2 speedup of a new best; an unknown noise makes no kernel less worth a try."""
    return view.incumbent_log2 + max(view.noise_log2 or 0.0, SMALLEST_CLAIM_LOG2)


def _chance_above(candidate: Candidate, log2_speedup: float) -> float:
    return candidate.forecast.chance_above(log2_speedup) if candidate.forecast else 1.0


def _new_best_chance(candidate: Candidate, view: View) -> float:
    return _chance_above(candidate, _threshold(view))


def _expected_improvement(candidate: Candidate, view: View) -> float:
    forecast = candidate.forecast
    if forecast is None:
        return math.inf
    return forecast.gain(_threshold(view))
