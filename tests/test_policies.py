from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.policies import MeasureAll, Selective, TopK
from kernelcast.testing import PolicyContract, make_candidate, make_view
from kernelcast.types import Candidate, Decision


class TestMeasureAll(PolicyContract):
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
        measured = {i for i, each in enumerate(pool) if decided[each.kernel_id].action == "measure"}
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
        dropped = {key for key, each in decided.items() if each.action == "drop"}
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
            audited = [key for key, each in decided.items() if each.action == "audit"]
            assert audited == [pool[-1].kernel_id]

    def test_about_the_stated_share_of_measurements_are_audits(self) -> None:
        pool = [make_candidate(index, 0.0) for index in range(64)]
        policy = Selective(audit_share=0.25)
        audits = [
            any(each.action == "audit" for each in policy.decide(pool, view).values())
            for view in (make_view(seed=5, measured=measured) for measured in range(400))
        ]
        assert 65 <= sum(audits) <= 135  # a quarter of 400, four standard deviations around

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
        costly = [each for each in decided.values() if each.action in ("measure", "audit")]
        assert len(costly) <= free_slots


def quiet(**options: Any) -> Selective:
    """A selective policy without audits."""
    return Selective(audit_share=0.0, **options)


def actions(decided: dict[str, Decision]) -> set[str]:
    return {decision.action for decision in decided.values()}


def decided_action(candidate: Candidate, view: Any) -> str:
    (decision,) = quiet(pool_size=1).decide([candidate], view).values()
    return decision.action


@pytest.mark.parametrize("policy", [TopK(), Selective()])
def test_without_a_free_slot_nothing_is_decided(policy: TopK | Selective) -> None:
    pool = [make_candidate(index, 0.0) for index in range(policy.pool_size)]
    assert policy.decide(pool, make_view(free_slots=0)) == {}


def test_a_pool_that_is_ruled_out_whole_still_gets_a_measurement() -> None:
    pool = [make_candidate(number, mean=-3.0 - number, std=0.1) for number in range(4)]
    view = make_view(incumbent_log2=2.0)
    decisions = Selective(pool_size=4, audit_share=0.0).decide(pool, view)
    measured = [key for key, each in decisions.items() if each.action == "measure"]
    assert measured == [pool[0].kernel_id]
    assert len(decisions) == 4


def test_a_stream_is_measured_only_where_it_is_worth_it() -> None:
    (candidate,) = pool = [make_candidate(0, mean=-3.0, std=0.1)]
    policy = Selective(pool_size=1, audit_share=0.0)
    decisions = policy.decide(pool, make_view(incumbent_log2=2.0))
    assert decisions[candidate.kernel_id].action == "drop"
