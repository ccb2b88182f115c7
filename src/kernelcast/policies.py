"""What is done with each candidate: drop, trust, measure or audit.

A policy sees forecasts, never forecasters, and decides from them and the run's `View` alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelcast.types import Candidate, Decision, View

_LEAST_GAIN_LOG2 = math.log2(1.01)  # below one percent nothing is claimed to be faster


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
class Selective:
    """Trust the forecast where it is sure, measure where it is not.

    - A share of the measurements, drawn by the run's seed, goes to the candidate that came last,
      whatever its forecast: no choice by forecasts has touched it yet, so calibration is measured
      without bias and a wrong forecaster is found out.
    - Surely no new best (probability below `drop_below`): dropped, or trusted as a parent where the
      forecast is narrow and close to the incumbent. Of a pool of several, one is measured even so.
    - Of the rest, those with the highest expected improvement are measured as slots come free. The
      others stay open, to be judged again with what was learnt, but for the last few: while more
      are proposed, those make room for at least `turnover` new candidates a decision.
    """

    pool_size: int = 64
    turnover: int = 8
    audit_share: float = 0.1
    drop_below: float = 0.01
    trust_width_log2: float = 0.4
    trust_within_log2: float = 0.3
    name: str = "selective"

    def decide(self, pool: Sequence[Candidate], view: View) -> dict[str, Decision]:
        """Decide on a full pool, or on what there is when no more comes."""
        if view.free_slots < 1 or (len(pool) < self.pool_size and not view.proposals_exhausted):
            return {}
        newest = sorted(pool, key=lambda candidate: -candidate.ordinal)
        audits = newest[: self._audits(view)]
        decisions = {
            candidate.kernel_id: Decision(
                action="audit", score=self.audit_share, reason="blind, to check the forecasts"
            )
            for candidate in audits
        }
        slots = view.free_slots - len(decisions)
        contenders: list[tuple[float, Candidate]] = []
        for candidate in pool:
            if candidate.kernel_id in decisions:
                continue
            settled = self._settle(candidate, view)
            if settled is not None:
                decisions[candidate.kernel_id] = settled
            else:
                contenders.append((_expected_improvement(candidate, view), candidate))
        contenders.sort(key=lambda pair: (-pair[0], pair[1].ordinal))
        if len(contenders) < slots and self.pool_size > 1:
            # No pool goes by without a measurement: a forecaster that rules out everything would
            # have thousands proposed and dropped, and never be taught better.
            dropped = (each for each in pool if _is_dropped(decisions.get(each.kernel_id)))
            ranked = sorted(
                ((_expected_improvement(each, view), each) for each in dropped),
                key=lambda pair: (-pair[0], pair[1].ordinal),
            )
            contenders += ranked[: slots - len(contenders)]
        for gain, candidate in contenders[:slots]:
            decisions[candidate.kernel_id] = Decision(
                action="measure", score=gain, reason=_measure_reason(candidate, view)
            )
        room = max(self.pool_size - self.turnover, slots)
        if view.proposals_exhausted:
            room = len(contenders)
        for gain, candidate in contenders[room:]:
            decisions[candidate.kernel_id] = Decision(
                action="drop", score=gain, reason=f"outranked by {room} open candidates"
            )
        return decisions

    def _audits(self, view: View) -> int:
        """How many of the free slots audit; none where the newest may have been judged before."""
        if view.proposals_exhausted:
            return 0
        draws = (
            np.random.default_rng([view.seed, view.measured + slot]).random()
            for slot in range(view.free_slots)
        )
        return sum(draw < self.audit_share for draw in draws)

    def _settle(self, candidate: Candidate, view: View) -> Decision | None:
        if candidate.forecast is None:
            return None
        chance = _new_best_chance(candidate, view)
        if chance >= self.drop_below:
            return None
        density = candidate.forecast.against_reference()
        low, high = density.interval(0.8)
        gap = view.incumbent_log2 - density.quantile(0.5)
        if high - low <= self.trust_width_log2 and gap <= self.trust_within_log2:
            return Decision(
                action="trust",
                score=chance,
                reason=f"surely within {2**gap:.2f}x of the best: a parent, not a result",
            )
        return Decision(action="drop", score=chance, reason=f"P(new best) {chance:.3f}")


def _is_dropped(decision: Decision | None) -> bool:
    return decision is not None and decision.action == "drop"


def _expected_log2(candidate: Candidate) -> float:
    """Forecast mean against the reference; nothing is expected of what was not forecast."""
    forecast = candidate.forecast
    return forecast.against_reference().mean() if forecast else -math.inf


def _threshold(view: View) -> float:
    return view.incumbent_log2 + max(view.noise_log2, _LEAST_GAIN_LOG2)


def _new_best_chance(candidate: Candidate, view: View) -> float:
    forecast = candidate.forecast
    if forecast is None:
        return 1.0
    return forecast.p_ok * forecast.against_reference().probability_above(_threshold(view))


def _expected_improvement(candidate: Candidate, view: View) -> float:
    forecast = candidate.forecast
    if forecast is None:
        return math.inf
    return forecast.p_ok * forecast.against_reference().expected_improvement(_threshold(view))


def _measure_reason(candidate: Candidate, view: View) -> str:
    if candidate.forecast is None:
        return "no forecast"
    return f"P(new best) {_new_best_chance(candidate, view):.2f}, the most to gain"
