"""Rewards: which of them an honest answer maximises, and which can be had by bluffing."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kernelcast.errors import SetupError
from kernelcast.outcomes import CAUSES, Outcomes, Shares
from kernelcast.scoring import half_brier, ordinal_crps
from kernelcast.training.rewards import LOG_FLOOR, REWARDS, Reward, Weights, reward

OUTCOMES = Outcomes()
COUNT = OUTCOMES.count
weights = st.lists(st.floats(0.0, 1.0), min_size=COUNT, max_size=COUNT)
CALIBRATED = {
    "brier": Weights(correctness=0.0, brier=1.0),
    "crps": Weights(correctness=0.0, crps=1.0),
    "log": Weights(correctness=0.0, log=1.0),
}


def shares(values: list[float], least: float = 0.0) -> Shares:
    """Chances of which none is below `least` but above 0."""
    assume(sum(values) > 0.1)
    kept = [value / sum(values) for value in values]
    kept = [value if value >= 2 * least else 0.0 for value in kept]
    return Shares.of(kept)


def expected(answer: Shares, belief: Shares, scored: Weights) -> float:
    return math.fsum(
        chance * reward(answer, outcome, scored) for outcome, chance in enumerate(belief.chances)
    )


@pytest.mark.parametrize("name", CALIBRATED)
@given(weights, weights)
def test_no_answer_earns_more_than_ones_own_belief(
    name: str, said: list[float], believed: list[float]
) -> None:
    belief = shares(believed, least=math.e * LOG_FLOOR)
    scored = CALIBRATED[name]
    assert expected(shares(said), belief, scored) <= expected(belief, belief, scored) + 1e-12
    # With correctness beside it, the best letter is that of the likeliest outcome.
    both = REWARDS[name]
    assert expected(shares(said), belief, both) <= expected(belief, belief, both) + 1e-12


@given(weights, weights)
def test_correctness_does_not_care_for_chances(said: list[float], believed: list[float]) -> None:
    """It is not proper: a sure answer earns as much as an honest one of the same letter."""
    belief = shares(believed)
    bluff = Shares(belief.likeliest, tuple(np.eye(COUNT)[belief.likeliest].tolist()))
    liar = shares(said)._replace(likeliest=belief.likeliest)
    honest = expected(belief, belief, REWARDS["correctness"])
    assert expected(bluff, belief, REWARDS["correctness"]) == pytest.approx(honest)
    assert expected(liar, belief, REWARDS["correctness"]) == pytest.approx(honest)


@given(weights, st.integers(0, COUNT - 1))
def test_rewards_lie_between_0_and_1_and_what_cannot_be_read_earns_0(
    said: list[float], outcome: int
) -> None:
    for scored in (*CALIBRATED.values(), REWARDS["correctness"]):
        assert 0.0 <= reward(shares(said), outcome, scored) <= 1.0 + 1e-12
        assert reward(None, outcome, scored) == 0.0


@given(st.lists(st.floats(0.0, 1.0), min_size=9, max_size=9), st.integers(0, 8))
def test_of_a_kernel_that_runs_the_rewards_are_the_papers(said: list[float], outcome: int) -> None:
    assume(sum(said) > 0.1)
    answer = Shares.of([0.0] * len(CAUSES) + said)
    of_bins = answer.chances[len(CAUSES) :]
    right = float(answer.likeliest == outcome + len(CAUSES))
    at = outcome + len(CAUSES)
    brier = right + 1.0 - half_brier(of_bins, outcome)
    assert reward(answer, at, REWARDS["brier"]) == pytest.approx(brier)
    crps = right + 2.0 - ordinal_crps(of_bins, outcome)
    assert reward(answer, at, REWARDS["crps"]) == pytest.approx(crps)


def test_failures_have_no_order() -> None:
    """Two wrong causes are as wrong, where two wrong bins are not."""
    sure = [Shares.of(np.eye(COUNT)[at].tolist()) for at in range(COUNT)]
    scored = CALIBRATED["crps"]
    assert len({reward(sure[at], 0, scored) for at in range(1, COUNT)}) == 1
    near, far = (reward(sure[at], 6, scored) for at in (7, 12))
    assert near > far
    assert reward(sure[0], 6, scored) < far


@given(weights, st.integers(0, COUNT - 1), *[st.floats(0.0, 3.0)] * 4)
def test_weights_are_honoured(
    said: list[float], outcome: int, correctness: float, brier: float, crps: float, log: float
) -> None:
    answer = shares(said)
    each = [reward(answer, outcome, one) for one in CALIBRATED.values()]
    right = reward(answer, outcome, REWARDS["correctness"])
    total = reward(answer, outcome, Weights(correctness, brier, crps, log))
    parts = zip((brier, crps, log), each, strict=True)
    assert total == pytest.approx(correctness * right + sum(w * part for w, part in parts))


def test_a_reward_reads_what_the_forecaster_reads() -> None:
    digits = Reward.named("brier")
    text = OUTCOMES.digits([0.0] * 4 + [0, 0, 0, 1, 8, 1, 0, 0, 0])
    assert digits(f" {text}\n", 8) == pytest.approx(
        1.0 + 1.0 - half_brier([0.1, 0.8, 0.1], 1), abs=0.01
    )
    assert digits("I think it is a tie", 8) == 0.0
    points = dict.fromkeys(OUTCOMES.keys, 0) | {"tie": 100, "rationale": "no change"}
    reasoned = Reward.named("crps", asked="reasoned")
    assert reasoned(f"Let me see. {json.dumps(points)}", 8) == pytest.approx(3.0)
    with pytest.raises(SetupError, match="correctness, brier, crps, log"):
        Reward.named("speed")
