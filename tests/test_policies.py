from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kernelcast.distribution import Distribution
from kernelcast.errors import SetupError
from kernelcast.events import ComponentSpec
from kernelcast.plugins import build
from kernelcast.policies import Conformal, MeasureAll, Selective, TopK, ValueOfInformation
from kernelcast.testing import PolicyContract, make_candidate, make_view
from kernelcast.types import Audit, Candidate, Decision


class TestMeasureAll(PolicyContract):
    heeds = False

    def make(self) -> Any:
        return MeasureAll()

    def test_measures_the_oldest_as_slots_come_free(self) -> None:
        pool = [make_candidate(index, mean=float(index)) for index in (3, 1, 2)]
        decided = self.make().decide(pool, make_view(free_slots=2))
        assert set(decided) == {pool[1].kernel_id, pool[2].kernel_id}
        assert actions(decided) == {"measure"}


class TestTopK(PolicyContract):
    def make(self) -> Any:
        return TopK()

    def test_measures_the_highest_means_and_drops_the_rest(self) -> None:
        means = np.random.default_rng(0).permutation(16)
        pool = [make_candidate(i, float(mean), std=0.1) for i, mean in enumerate(means)]
        decided = TopK(k=4).decide(pool, make_view())
        measured = {
            i
            for i, candidate in enumerate(pool)
            if decided[candidate.kernel_id].action == "measure"
        }
        assert measured == {i for i, mean in enumerate(means) if mean >= 12}
        assert len(decided) == 16

    def test_waits_for_a_full_pool(self) -> None:
        pool = [make_candidate(index, 0.0) for index in range(15)]
        assert TopK().decide(pool, make_view()) == {}
        assert len(TopK().decide(pool, make_view(proposals_exhausted=True))) == 15

    def test_what_was_not_forecast_comes_last(self) -> None:
        pool = [make_candidate(0), make_candidate(1, -5.0)]
        decided = TopK(k=1, pool_size=2).decide(pool, make_view())
        assert decided[pool[1].kernel_id].action == "measure"
        assert decided[pool[0].kernel_id].action == "drop"
        assert decided[pool[0].kernel_id].score == -math.inf


class TestSelective(PolicyContract):
    def make(self) -> Any:
        return Selective()

    def test_measures_the_highest_expected_improvement(self) -> None:
        # The wide one is worse on average and may be far better: that is worth a measurement.
        pool = [make_candidate(0, 0.1, 0.05), make_candidate(1, -0.2, 1.5)]
        decided = quiet(pool_size=2, turnover=0).decide(pool, make_view())
        assert actions(decided) == {"measure"}
        assert set(decided) == {pool[1].kernel_id}

    def test_drops_what_is_surely_slower(self) -> None:
        pool = [make_candidate(0, -3.0, 0.2), make_candidate(1, 0.5)]
        decided = quiet(pool_size=2).decide(pool, make_view())
        assert decided[pool[0].kernel_id].action == "drop"
        assert "P(new best)" in decided[pool[0].kernel_id].reason

    def test_trusts_what_is_narrow_and_close_behind(self) -> None:
        close = make_candidate(0, -0.2, 0.05)
        far = make_candidate(1, -0.6, 0.05)
        vague = make_candidate(2, -1.2, 0.3)
        hopeful = make_candidate(3, 0.5, 0.3)  # something to measure
        decided = quiet(pool_size=4).decide([close, far, vague, hopeful], make_view())
        assert decided[close.kernel_id].action == "trust"
        assert decided[far.kernel_id].action == "drop"
        assert decided[vague.kernel_id].action == "drop"

    def test_a_likely_failure_is_worth_less(self) -> None:
        sound = make_candidate(0, 0.5, p_fail=0.0)
        risky = make_candidate(1, 0.6, p_fail=0.9)
        decided = quiet(pool_size=2, turnover=0).decide([risky, sound], make_view())
        assert set(decided) == {sound.kernel_id}

    def test_noise_is_no_improvement(self) -> None:
        candidate = make_candidate(0, 0.1, 0.02)
        assert decided_action(candidate, make_view(noise_log2=0.01)) == "measure"
        assert decided_action(candidate, make_view(noise_log2=0.3)) == "trust"

    def test_a_full_pool_of_contenders_makes_room(self) -> None:
        pool = [make_candidate(index, 0.01 * index) for index in range(64)]
        decided = quiet().decide(pool, make_view())
        dropped = {key for key, decision in decided.items() if decision.action == "drop"}
        assert dropped == {candidate.kernel_id for candidate in pool[:8]}

    def test_when_no_more_come_contenders_stay(self) -> None:
        pool = [make_candidate(index, 0.01 * index) for index in range(64)]
        decided = quiet().decide(pool, make_view(proposals_exhausted=True))
        assert actions(decided) == {"measure"}

    def test_audits_are_blind_to_the_forecast(self) -> None:
        """The candidate that came last is audited, be its forecast the best or the worst."""
        for means in (range(64), range(64, 0, -1)):
            pool = [make_candidate(index, 0.1 * mean) for index, mean in enumerate(means)]
            decided = Selective(audit_share=1.0).decide(pool, make_view())
            audited = [key for key, decision in decided.items() if decision.action == "audit"]
            assert audited == [pool[-1].kernel_id]

    def test_about_the_stated_share_of_measurements_are_audits(self) -> None:
        pool = [make_candidate(index, 0.0) for index in range(64)]
        policy = Selective(audit_share=0.25)
        audits = [
            any(decision.action == "audit" for decision in policy.decide(pool, view).values())
            for view in (make_view(seed=5, measured=measured) for measured in range(400))
        ]
        assert 65 <= sum(audits) <= 135  # a quarter of 400, four standard deviations around

    def test_stagnation_spends_more_on_audits(self) -> None:
        pool = [make_candidate(index, 0.0) for index in range(4)]
        policy = Selective(audit_share=0.1, patience=10, pool_size=4, turnover=1)

        def audits(stale: int) -> int:
            views = (make_view(seed=5, measured=measured, stale=stale) for measured in range(400))
            decided = [policy.decide(pool, view).values() for view in views]
            return sum(any(decision.action == "audit" for decision in every) for every in decided)

        assert audits(0) == audits(10)
        # 20%, then a quarter at most; four standard deviations around.
        assert 48 <= audits(20) <= 112
        assert 65 <= audits(1_000) <= 135

    def test_an_audit_says_how_likely_it_was(self) -> None:
        pool = [make_candidate(index, 0.0) for index in range(4)]
        policy = Selective(audit_share=0.1, patience=10, pool_size=4, turnover=1)
        shares = {
            decision.score
            for measured in range(60)
            for decision in policy.decide(pool, make_view(measured=measured, stale=20)).values()
            if decision.action == "audit"
        }
        assert shares == {0.2}

    def test_imagination_ends_where_doubt_has_added_up(self) -> None:
        """Chains of steps that are each as sure: some are taken, none goes on for ever."""
        policy = quiet(pool_size=2)
        hopeful = make_candidate(1, 0.5)
        chain_std, depth = 0.0, 0
        while depth < 100:
            step = make_candidate(0, -0.2, 0.05).model_copy(update={"chain_std": chain_std})
            if policy.decide([step, hopeful], make_view())[step.kernel_id].action != "trust":
                break
            chain_std, depth = math.hypot(chain_std, 0.05), depth + 1
        assert 5 <= depth <= 15
        assert chain_std <= policy.trust_doubt_log2

    def test_what_may_well_fail_is_not_trusted(self) -> None:
        sound = make_candidate(0, -0.2, 0.05)
        risky = make_candidate(1, -0.2, 0.05, p_fail=0.5)
        hopeful = make_candidate(2, 0.5)
        decided = quiet(pool_size=3).decide([sound, risky, hopeful], make_view())
        assert decided[sound.kernel_id].action == "trust"
        assert decided[risky.kernel_id].action == "drop"

    def test_an_objection_is_dropped_with_its_reason_unless_audited(self) -> None:
        pool = [make_candidate(0, 0.2), objected(make_candidate(1, 2.0))]
        decided = quiet(pool_size=2, drop_below=0.0).decide(pool, make_view())
        assert decided[pool[1].kernel_id].action == "drop"
        assert "the loop is the same" in decided[pool[1].kernel_id].reason
        audited = Selective(audit_share=1.0, pool_size=2).decide(pool, make_view())
        assert audited[pool[1].kernel_id].action == "audit"

    def test_many_slots_do_not_spend_the_budget_at_one_sight(self) -> None:
        pool = [make_candidate(index, 0.01 * index) for index in range(64)]

        def measured(**view: Any) -> int:
            decided = quiet().decide(pool, make_view(free_slots=64, **view))
            return sum(decision.action == "measure" for decision in decided.values())

        assert measured(measurements_left=math.inf) == 16
        assert measured(measurements_left=20) == 5
        assert measured(measurements_left=1) == 1
        assert measured(measurements_left=20, proposals_exhausted=True) == 64

    @settings(max_examples=50, deadline=None)
    @given(
        means=st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=20),
        free_slots=st.integers(1, 5),
        share=st.sampled_from([0.0, 0.1, 1.0]),
    )
    def test_measures_and_audits_no_more_than_slots(
        self, means: list[float], free_slots: int, share: float
    ) -> None:
        pool = [make_candidate(index, mean) for index, mean in enumerate(means)]
        view = make_view(free_slots=free_slots, proposals_exhausted=True)
        decided = Selective(audit_share=share).decide(pool, view)
        costly = [
            decision for decision in decided.values() if decision.action in ("measure", "audit")
        ]
        assert len(costly) <= free_slots


class TestConformal(PolicyContract):
    def make(self) -> Any:
        return Conformal()

    def test_without_audits_nothing_is_dropped_and_the_reason_says_so(self) -> None:
        pool = [make_candidate(index, -0.1 * index, 0.05) for index in range(64)]
        decided = Conformal(audit_share=0.0).decide(pool, make_view(seed=3))
        assert actions(decided) <= {"measure", "audit"}
        decided = Conformal().decide(pool, make_view(proposals_exhausted=True, audits=clean(18)))
        (reason,) = [decision.reason for decision in decided.values()]
        assert "18 audits cannot hold 5.0% misses yet" in reason

    def test_half_of_the_measurements_are_audits_until_the_bound_holds(self) -> None:
        pool = [make_candidate(index, 0.0) for index in range(4)]

        def audits(known: int) -> int:
            views = (make_view(seed=5, measured=at, audits=clean(known)) for at in range(200))
            decided = [Conformal(pool_size=4).decide(pool, view).values() for view in views]
            return sum(any(decision.action == "audit" for decision in every) for every in decided)

        assert 72 <= audits(18) <= 128  # a half of 200, four standard deviations around
        assert 3 <= audits(19) <= 37  # a tenth

    @pytest.mark.parametrize(("target", "least"), [(0.1, 9), (0.05, 19), (0.01, 99)])
    def test_the_least_audits_that_hold_a_target(self, target: float, least: int) -> None:
        policy = Conformal(miss_target=target)
        assert bar(policy, clean(least - 1)) == -math.inf
        assert bar(policy, clean(least)) > -math.inf

    def test_the_bar_is_the_highest_that_the_audits_bear_out(self) -> None:
        # Of 40 at 0.1 one was a new best: 2/41 is within 5%. Of 10 more at 0.4 it was every other.
        audits = [
            *(Audit(p_new_best=0.1, new_best=index == 0) for index in range(40)),
            *(Audit(p_new_best=0.4, new_best=index % 2 == 0) for index in range(10)),
        ]
        assert bar(Conformal(), audits) == 0.4
        # One more among the 40, and nothing holds: 3/41.
        assert bar(Conformal(), [*audits, Audit(p_new_best=0.1, new_best=True)]) == -math.inf

    def test_the_bar_is_never_above_drop_below(self) -> None:
        audits = [Audit(p_new_best=index / 100, new_best=False) for index in range(40)]
        assert bar(Conformal(), audits) > 0.39
        assert bar(Conformal(drop_below=0.03), audits) == 0.03
        assert bar(Conformal(drop_below=0.03), audits[:10]) == -math.inf

    def test_equal_scores_stand_or_fall_together(self) -> None:
        audits = [
            *(Audit(p_new_best=0.2, new_best=False) for _ in range(30)),
            *(Audit(p_new_best=0.2, new_best=True) for _ in range(10)),
        ]
        assert bar(Conformal(), audits) == -math.inf

    def test_turns_away_what_is_below_the_bar_and_nothing_else(self) -> None:
        # P(new best) of 0.024, 0.12 and 0.48 or so, with the bar at 0.4.
        audits = [*clean(60, 0.1), *(Audit(p_new_best=0.4, new_best=True) for _ in range(5))]
        pool = [make_candidate(i, mean, 0.5) for i, mean in enumerate((-1.0, -0.6, 0.01))]
        policy = Conformal(pool_size=3, audit_share=0.0)
        decided = policy.decide(pool, make_view(audits=tuple(audits)))
        assert [decided[candidate.kernel_id].action for candidate in pool] == [
            "drop",
            "drop",
            "measure",
        ]
        assert "at most 5.0% are missed, by 65 audits" in decided[pool[0].kernel_id].reason

    def test_no_contender_is_outranked(self) -> None:
        pool = [make_candidate(index, 0.5 + 0.01 * index) for index in range(64)]
        decided = Conformal(audit_share=0.0).decide(pool, make_view(audits=clean(60, 0.1)))
        assert actions(decided) == {"measure"}

    def test_objections_that_proved_wrong_are_not_heeded(self) -> None:
        """Audits of what was objected to carry a chance of 0; were they new bests, no bar holds."""
        pool = [objected(make_candidate(0, 1.0)), make_candidate(1, 0.5)]
        policy = Conformal(pool_size=2, audit_share=0.0)
        view = make_view(proposals_exhausted=True)
        wrong = tuple(Audit(p_new_best=0.0, new_best=index % 2 == 0) for index in range(40))
        right = clean(40, 0.0)
        believed = policy.decide(pool, view.model_copy(update={"audits": right}))
        assert believed[pool[0].kernel_id].action == "drop"
        assert pool[0].kernel_id not in policy.decide(
            pool, view.model_copy(update={"audits": wrong})
        )

    @settings(max_examples=30, deadline=None)
    @given(
        target=st.sampled_from([0.02, 0.05, 0.1, 0.2]),
        audits=st.integers(5, 150),
        most=st.floats(0.01, 1.0),
        power=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 3.0]),
        steps=st.sampled_from([0, 3, 10]),
        seed=st.integers(0, 2**32 - 1),
    )
    def test_the_bound_holds_whatever_the_forecaster_is_worth(
        self, target: float, audits: int, most: float, power: float, steps: int, seed: int
    ) -> None:
        """E[missed * (N + 1) / (n + 1)] <= target where a candidate is exchangeable with N audits.

        A score of s is a new best with chance `most` * s ** `power` (-1: upside down), and scores
        are tied in `steps`. What is averaged lies between 0 and N + 1, which no simulation of this
        size could tell from its bound where n is small; so the bound is held against the mean with
        four of its own standard errors, and misses per candidate against a binomial's.
        """
        rng = np.random.default_rng(seed)
        policy = Conformal(miss_target=target)

        def draw(count: int) -> tuple[Any, Any]:
            scores = rng.random(count)
            scores = np.floor(scores * steps) / steps if steps else scores
            chance = most * ((1.0 - scores) if power < 0.0 else scores**power)
            return scores, rng.random(count) < chance

        runs, candidates = 100, 200
        missed_per_turned_away, missed = [], 0
        for _ in range(runs):
            scores, won = draw(audits)
            known = [
                Audit(p_new_best=float(score), new_best=bool(new))
                for score, new in zip(scores, won, strict=True)
            ]
            threshold = bar(policy, known)
            turned_away = (int(np.sum(scores < threshold)) + 1) / (audits + 1)
            scores, won = draw(candidates)
            share_missed = float(np.mean((scores < threshold) & won))
            missed_per_turned_away.append(share_missed / turned_away)
            missed += int(np.sum((scores < threshold) & won))
        error = float(np.std(missed_per_turned_away)) / math.sqrt(runs)
        assert np.mean(missed_per_turned_away) <= target + 4.0 * error
        # Of all candidates, turned away or not, the missed are therefore fewer still.
        assert missed <= stats.binom.isf(1e-6, runs * candidates, target)

    def test_a_forecaster_that_ranks_misses_no_more_of_the_turned_away_than_stated(self) -> None:
        """With calibrated scores: missed of turned away over many runs, by a binomial's bound."""
        rng = np.random.default_rng(0)
        for target in (0.02, 0.05, 0.1):
            missed = turned_away = 0
            for _ in range(100):
                scores = rng.beta(0.5, 5.0, size=200)
                won = rng.random(200) < scores
                known = [
                    Audit(p_new_best=float(score), new_best=bool(new))
                    for score, new in zip(scores, won, strict=True)
                ]
                threshold = bar(Conformal(miss_target=target), known)
                scores = rng.beta(0.5, 5.0, size=100)
                won = rng.random(100) < scores
                turned_away += int(np.sum(scores < threshold))
                missed += int(np.sum((scores < threshold) & won))
            assert turned_away > 3_000, "the bound must be of some use"
            assert missed <= stats.binom.isf(0.001, turned_away, target)

    @pytest.mark.parametrize("target", [0.0, 1.0, -0.1])
    def test_a_target_is_a_share(self, target: float) -> None:
        with pytest.raises(SetupError, match="miss_target"):
            build("policy", ComponentSpec(name="conformal", options={"miss_target": target}))


class TestValueOfInformation(PolicyContract):
    def make(self) -> Any:
        return ValueOfInformation()

    def test_a_slow_kernel_must_promise_more(self) -> None:
        """It takes long to be found slow, so an outside chance of much may not be worth it."""
        quick, slow = make_candidate(0, 0.3, 0.5), make_candidate(1, -3.0, 0.5)
        assert quick.forecast is not None
        assert slow.forecast is not None
        mixed = Distribution.mixture(
            [slow.forecast.distribution, quick.forecast.distribution.shift(1.5)], [0.8, 0.2]
        )
        forecast = slow.forecast.model_copy(update={"distribution": mixed})
        pool = [quick, slow.model_copy(update={"forecast": forecast})]
        view = make_view(incumbent_log2=0.3)
        by_gain = quiet(pool_size=2, turnover=0).decide(pool, view)
        by_cost = ValueOfInformation(pool_size=2, turnover=0, audit_share=0.0).decide(pool, view)
        assert set(by_gain) == {slow.kernel_id}
        assert set(by_cost) == {quick.kernel_id}

    def test_what_promises_less_than_its_price_is_turned_away(self) -> None:
        pool = [make_candidate(0, 0.5), make_candidate(1, -0.8, 0.4)]
        dear = ValueOfInformation(pool_size=2, audit_share=0.0, doubling_usd=0.1)
        cheap = ValueOfInformation(pool_size=2, audit_share=0.0, doubling_usd=1e6)
        decided = dear.decide(pool, make_view(proposals_exhausted=True))
        assert decided[pool[1].kernel_id].action == "drop"
        assert "below the price 0.042" in decided[pool[1].kernel_id].reason
        assert pool[1].kernel_id not in cheap.decide(pool, make_view(proposals_exhausted=True))

    def test_slots_stay_free_where_what_is_to_come_promises_more(self) -> None:
        """Of one outstanding candidate and many alike, one is measured, although four could be."""
        outstanding = make_candidate(0, 1.5, 0.1)
        others = [make_candidate(index, -0.2, 0.3) for index in range(1, 64)]
        policy = ValueOfInformation(audit_share=0.0)
        decided = policy.decide([*others, outstanding], make_view(free_slots=4))
        measured = [key for key, decision in decided.items() if decision.action == "measure"]
        assert measured == [outstanding.kernel_id]

    def test_when_no_more_come_every_slot_is_used(self) -> None:
        pool = [make_candidate(index, 0.1 * index, 0.3) for index in range(8)]
        decided = ValueOfInformation().decide(
            pool, make_view(free_slots=4, proposals_exhausted=True)
        )
        measured = {key for key, decision in decided.items() if decision.action == "measure"}
        assert measured == {candidate.kernel_id for candidate in pool[4:]}


def clean(count: int, chance: float = 0.05) -> tuple[Audit, ...]:
    """Audits of which none was a new best."""
    return tuple(Audit(p_new_best=chance, new_best=False) for _ in range(count))


def bar(policy: Conformal, audits: Sequence[Audit]) -> float:
    """The P(new best) below which a policy turns candidates away, after these audits."""
    return policy.bar(make_view(audits=tuple(audits)))


def objected(candidate: Candidate) -> Candidate:
    assert candidate.forecast is not None
    forecast = candidate.forecast.model_copy(update={"objection": "the loop is the same"})
    return candidate.model_copy(update={"forecast": forecast})


def quiet(**options: Any) -> Selective:
    """A selective policy without audits."""
    return Selective(audit_share=0.0, **options)


def actions(decided: dict[str, Decision]) -> set[str]:
    return {decision.action for decision in decided.values()}


def decided_action(candidate: Candidate, view: Any) -> str:
    (decision,) = quiet(pool_size=1).decide([candidate], view).values()
    return decision.action


@pytest.mark.parametrize("policy", [TopK(), Selective(), Conformal(), ValueOfInformation()])
def test_without_a_free_slot_nothing_is_decided(policy: Any) -> None:
    pool = [make_candidate(index, 0.0) for index in range(policy.pool_size)]
    assert policy.decide(pool, make_view(free_slots=0)) == {}


def test_a_pool_that_is_ruled_out_whole_still_gets_a_measurement() -> None:
    pool = [make_candidate(number, mean=-3.0 - number, std=0.1) for number in range(4)]
    view = make_view(incumbent_log2=2.0)
    decisions = Selective(pool_size=4, audit_share=0.0).decide(pool, view)
    measured = [key for key, decision in decisions.items() if decision.action == "measure"]
    assert measured == [pool[0].kernel_id]
    assert len(decisions) == 4


def test_a_stream_is_measured_only_where_it_is_worth_it() -> None:
    (candidate,) = pool = [make_candidate(0, mean=-3.0, std=0.1)]
    policy = Selective(pool_size=1, audit_share=0.0)
    decisions = policy.decide(pool, make_view(incumbent_log2=2.0))
    assert decisions[candidate.kernel_id].action == "drop"
