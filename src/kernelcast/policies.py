"""What is done with each candidate: drop, trust, measure or audit.

A policy sees forecasts, never forecasters, and decides from them and the run's `View` alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelcast.types import SMALLEST_CLAIM_LOG2, Candidate, Decision, View

_SURE_TO_RUN = 0.8
_MOST_AUDITS_WHEN_STALE = 0.25
_AUDITS_UNTIL_HELD = 0.5
_ONE_IN = 4
_LEVELS = np.linspace(0.1, 0.9, 9)
_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class MeasureAll:
    """The baseline: every candidate is measured, in the order it came."""

    pool_size: int = 1
    name: str = "measure_all"

    def decide(self, pool: Sequence[Candidate], view: View) -> dict[str, Decision]:
        """Measure the oldest candidates, as many as there are slots."""
        oldest = sorted(pool, key=lambda candidate: candidate.ordinal)[: view.free_slots]
        decision = Decision(action="measure", score=1.0, reason="everything is measured")
        return {candidate.kernel_id: decision for candidate in oldest}


@dataclass(frozen=True)
class TopK:
    """The paper's loop: of each full pool, the k with the highest forecast mean are measured."""

    k: int = 4
    pool_size: int = 16
    name: str = "top_k"

    def decide(self, pool: Sequence[Candidate], view: View) -> dict[str, Decision]:
        """Rank a full pool once, or what there is when no more comes."""
        if view.free_slots < 1 or (len(pool) < self.pool_size and not view.proposals_exhausted):
            return {}
        ranked = sorted(pool, key=lambda each: (-_expected_log2(each), each.ordinal))
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
    """What all policies share that go by forecasts; each has its own score, bar and gain.

    - Audits come first: a share of the measurements, drawn by the run's seed, goes to the candidate
      that came last, whatever its forecast. No choice by forecasts has touched it yet, so
      calibration is measured without bias and a wrong forecaster is found out. Where `stale` has
      outlasted `patience`, more of them are drawn.
    - What scores below the bar, or was objected to, is dropped; or trusted, which makes it a parent
      unmeasured, where the forecast is sure and close to the incumbent. Doubt adds up along a chain
      of kernels that were never measured, and `trust_doubt_log2` bounds the sum: chains end.
    - Of the others those with the most to gain are measured as slots come free, but at one sight no
      more than one in four of what is open, nor of the measurements left: the budget is not spent
      before the first of it has taught anything.
    - No pool of several goes by without a measurement. A forecaster that rules everything out would
      otherwise have thousands proposed and dropped, and never be taught better.
    """

    pool_size: int = 64
    audit_share: float = 0.1
    patience: int = 25
    trust_doubt_log2: float = 0.16
    trust_within_log2: float = 0.3

    def decide(self, pool: Sequence[Candidate], view: View) -> dict[str, Decision]:
        """Decide on a full pool, or on what there is when no more comes."""
        if view.free_slots < 1 or (len(pool) < self.pool_size and not view.proposals_exhausted):
            return {}
        slots = _paced_slots(pool, view)
        decisions = self._audits(pool, view, slots)
        audited = len(decisions)
        slots -= audited
        rest = [each for each in pool if each.kernel_id not in decisions]
        gains = {each.kernel_id: self._gain(each, view) for each in rest}
        rest.sort(key=lambda each: (_is_objected(each), -gains[each.kernel_id], each.ordinal))
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
        worth_it = self._worth_measuring([gains[each.kernel_id] for each in contenders], view)
        for candidate in contenders[: min(slots, worth_it)]:
            gain = gains[candidate.kernel_id]
            decisions[candidate.kernel_id] = Decision(
                action="measure", score=gain, reason=self._why(candidate, bar, view)
            )
        room = self._room(len(contenders), slots, view)
        for candidate in contenders[room:]:
            decisions[candidate.kernel_id] = Decision(
                action="drop",
                score=gains[candidate.kernel_id],
                reason=f"outranked by {room} open candidates",
            )
        return decisions

    @abstractmethod
    def _score(self, candidate: Candidate, view: View) -> float:
        """By what a candidate is turned away."""

    @abstractmethod
    def bar(self, view: View) -> float:
        """The score below which it is."""

    def _gain(self, candidate: Candidate, view: View) -> float:
        """By what those that are left are ranked."""
        return _expected_improvement(candidate, view)

    def _worth_measuring(self, gains: Sequence[float], view: View) -> int:
        """How many of the ranked should be measured now, were there slots for all."""
        del view
        return len(gains)

    def _room(self, contenders: int, slots: int, view: View) -> int:
        """How many of them are measured or stay open; all, where nobody is to give way."""
        del slots, view
        return contenders

    def _audit_share_now(self, view: View) -> float:
        raised = self.audit_share * max(1.0, view.stale / max(self.patience, 1))
        return max(self.audit_share, min(raised, _MOST_AUDITS_WHEN_STALE))

    def _audits(self, pool: Sequence[Candidate], view: View, slots: int) -> dict[str, Decision]:
        """Draw them; none where the newest may have been judged before."""
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
        assert forecast is not None, "what was not forecast cannot be turned away for its forecast"
        if forecast.objection:
            return Decision(action="drop", score=score, reason=f"objected: {forecast.objection}")
        density = forecast.against_reference()
        gap = view.incumbent_log2 - density.quantile(0.5)
        doubt = math.hypot(density.std(), candidate.chain_std)
        if (
            doubt <= self.trust_doubt_log2
            and gap <= self.trust_within_log2
            and forecast.p_ok >= _SURE_TO_RUN
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
    """Of those that are not measured now the last few go: while more are proposed, they make room
    for at least `turnover` new candidates a decision, in a small pool for half of it.
    """

    turnover: int = 8

    def _room(self, contenders: int, slots: int, view: View) -> int:
        if view.proposals_exhausted:
            return contenders
        return max(self.pool_size - min(self.turnover, self.pool_size // 2), slots)


@dataclass(frozen=True)
class Selective(_WithTurnover):
    """Trust the forecast where it is sure, measure where it is not.

    Surely no new best (probability below `drop_below`) is dropped or trusted; the rest is ranked by
    expected improvement. Those that are not measured now stay open, to be judged again with what
    was learnt, but for the last few: while more are proposed, those make room for at least
    `turnover` new candidates a decision. Audits, floor and imagination as in all policies here.
    """

    drop_below: float = 0.01
    name: str = "selective"

    def _score(self, candidate: Candidate, view: View) -> float:
        return _new_best_chance(candidate, view)

    def bar(self, view: View) -> float:
        """The P(new best) that was asked for."""
        del view
        return self.drop_below


@dataclass(frozen=True)
class Conformal(_ByForecast):
    """Drop as much as the user's bound on missed winners allows, as the audits show it.

    `miss_target` is the share of the candidates turned away by forecast (dropped or trusted) that
    may turn out to have been a new best. The bar on P(new best) is the highest b for which the n
    audits below it, of which k were a new best, keep (k + 1) / (n + 1) within the target.

    What is guaranteed: be the forecasts right or wrong, if a candidate is exchangeable with the N
    audits, then E[missed * (N + 1) / (n + 1)] <= miss_target, although the bar was picked from the
    same audits. (n + 1) / (N + 1) is the audits' word for how many are turned away, so misses are
    counted per candidate turned away, and a run that turns nobody away misses nothing. It is the
    argument of conformal selection: going down from the highest bar, 1{missed} / (k + 1) is a
    supermartingale, which begins at 1 / (N + 1).

    What is not: an average is bounded, not each run; a forecaster that says nothing may, by luck of
    the audits, let through more for a while. Nor are a run's candidates quite exchangeable. New
    bests grow rarer, so old audits overstate the misses, which is safe; but a proposer that breaks
    into new ground makes them more common until audits tell; and a candidate that stays open is
    judged again and again and turned away at its lowest score, an audit only once. An objection
    counts as the lowest score, so audits answer for objections too.

    While the audits are too few (1 / target - 1 of them are the least), nothing is dropped, half of
    the measurements are audits, and the reasons say that the bound cannot be held yet. Only being
    measured makes room then.
    """

    miss_target: float = 0.05
    name: str = "conformal"

    def __post_init__(self) -> None:
        """Refuse a target that is no share."""
        if not 0.0 < self.miss_target < 1.0:
            raise ValueError(f"miss_target is a share between 0 and 1, not {self.miss_target}")

    def _score(self, candidate: Candidate, view: View) -> float:
        # As audits are recorded: any gain over the incumbent is a new best.
        return _chance_above(candidate, view.incumbent_log2)

    def bar(self, view: View) -> float:
        """The highest bar that the audits bear out; minus infinity where they bear out none."""
        audits = sorted(view.audits, key=lambda audit: audit.p_new_best)
        scores = np.array([audit.p_new_best for audit in audits])
        won = np.cumsum([audit.new_best for audit in audits])
        below = np.arange(1, len(audits) + 1)
        # Above the highest score that was ever audited nothing is known.
        bars = np.append(scores[1:], np.nextafter(scores[-1:], np.inf))
        held = (won + 1 <= self.miss_target * (below + 1)) & (bars > scores)
        return float(bars[held][-1]) if held.any() else -math.inf

    def _audit_share_now(self, view: View) -> float:
        share = super()._audit_share_now(view)
        return share if self._is_held(view) else max(share, _AUDITS_UNTIL_HELD)

    def _is_held(self, view: View) -> bool:
        return self.bar(view) > -math.inf

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
    """Measure where the expected improvement per cost is highest, and only where it pays.

    - The cost of a measurement, in units of one of a kernel as fast as the reference: `fixed_share`
      of it is the same for all (compiling, inputs, the reference's own calls), the rest grows with
      the kernel's run time, and what fails costs little more than the fixed part.
    - The price: device time at the user's rate, against what a kernel twice as fast is worth to
      them (`doubling_usd`). What promises less than its price is turned away.
    - What else the budget could buy: each measurement that is not made now can be made of the best
      of the next `turnover` candidates. They are taken to be like those open now, so the expected
      maximum of as many draws from these is what a measurement must beat to be made at once; the
      best one open always is. Others wait, and the last few make room, as in `selective`.

    Stages before hardware have prices of their own: see the cascade, which weighs them alike.
    """

    fixed_share: float = 0.5
    device_usd_per_hour: float = 3.0
    measurement_s: float = 5.0
    doubling_usd: float = 100.0
    name: str = "value_of_information"

    def _score(self, candidate: Candidate, view: View) -> float:
        return self._gain(candidate, view)

    def bar(self, view: View) -> float:
        """The log2 speedup that a measurement must promise to be worth its price."""
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
        # Of m draws with replacement the highest is the r-th of n from below with this chance.
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
    most = min(len(pool), view.measurements_left) / _ONE_IN
    return min(view.free_slots, max(1, int(most)))


def _is_objected(candidate: Candidate) -> bool:
    return candidate.forecast is not None and bool(candidate.forecast.objection)


def _expected_log2(candidate: Candidate) -> float:
    """Forecast mean against the reference; nothing is expected of what was not forecast."""
    forecast = candidate.forecast
    if forecast is None or forecast.objection:
        return -math.inf
    return forecast.against_reference().mean()


def _threshold(view: View) -> float:
    return view.incumbent_log2 + max(view.noise_log2, SMALLEST_CLAIM_LOG2)


def _chance_above(candidate: Candidate, log2_speedup: float) -> float:
    return candidate.forecast.chance_above(log2_speedup) if candidate.forecast else 1.0


def _new_best_chance(candidate: Candidate, view: View) -> float:
    return _chance_above(candidate, _threshold(view))


def _expected_improvement(candidate: Candidate, view: View) -> float:
    forecast = candidate.forecast
    if forecast is None:
        return math.inf
    return forecast.p_ok * forecast.against_reference().expected_improvement(_threshold(view))
