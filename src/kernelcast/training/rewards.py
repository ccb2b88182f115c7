"""Rewards for forecasts in words: what an answer earns once the outcome is known.

Each reward lies between 0 and 1, and the answer that states a model's own belief earns the most on
average (the score is proper), except for `correctness`, which no chance changes:

correctness  1 if the outcome that is called the likeliest came true.
brier        1 - half the Brier score over all outcomes.
crps         1 - (half the Brier score over the causes of failure and success, plus the ranked
             probability score over the bins given success) / 2. Failures have no order, and only
             kernels that ran have a speed.
log          The log of the outcome's chance, scaled so that the floor is 0 and certainty is 1. The
             floor keeps it proper only for beliefs that give each outcome no chance, or at least e
             times the floor.

An answer that cannot be read earns 0 of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kernelcast.errors import SetupError
from kernelcast.llm import find_object
from kernelcast.outcomes import CAUSES, Outcomes, Shares
from kernelcast.scoring import half_brier, ordinal_crps

LOG_FLOOR = 1e-3
"""The chance below which the log score does not fall any more."""

Asked = Literal["digits", "reasoned"]


@dataclass(frozen=True)
class Weights:
    """How much of each score a reward holds."""

    correctness: float = 1.0
    brier: float = 0.0
    crps: float = 0.0
    log: float = 0.0


REWARDS: Mapping[str, Weights] = {
    "correctness": Weights(),
    "brier": Weights(brier=1.0),
    "crps": Weights(crps=2.0),  # of a kernel that runs, this is the paper's 1 - CRPS
    "log": Weights(log=1.0),
}
"""The paper's three rewards, and the log score; all contain correctness."""


def reward(shares: Shares | None, outcome: int, weights: Weights) -> float:
    """Return the weighted sum of the scores of an answer; `None` is one that cannot be read."""
    if shares is None:
        return 0.0
    total = weights.correctness * float(shares.likeliest == outcome)
    if weights.brier:
        total += weights.brier * (1.0 - half_brier(shares.chances, outcome))
    if weights.crps:
        total += weights.crps * _crps_score(shares, outcome)
    if weights.log:
        total += weights.log * _log_score(shares, outcome)
    return total


def _crps_score(shares: Shares, outcome: int) -> float:
    fails, runs = shares.chances[: len(CAUSES)], shares.chances[len(CAUSES) :]
    p_ok = math.fsum(runs)
    succeeded = outcome >= len(CAUSES)
    loss = half_brier((*fails, p_ok), len(CAUSES) if succeeded else outcome)
    if succeeded:
        # Without a chance of success nothing is said about the speed.
        speed = [chance / p_ok for chance in runs] if p_ok else [1.0 / len(runs)] * len(runs)
        loss += ordinal_crps(speed, outcome - len(CAUSES))
    return 1.0 - loss / 2.0


def _log_score(shares: Shares, outcome: int) -> float:
    return 1.0 - math.log(max(shares.chances[outcome], LOG_FLOOR)) / math.log(LOG_FLOOR)


@dataclass(frozen=True)
class Reward:
    """The reward of a text that answers in digits, or of one with reasoned points."""

    weights: Weights
    outcomes: Outcomes = field(default_factory=Outcomes)
    asked: Asked = "digits"

    @classmethod
    def named(cls, name: str, **options: Any) -> Reward:
        """Return one of `REWARDS`."""
        if name not in REWARDS:
            raise SetupError(f"rewards are {', '.join(REWARDS)}, not {name!r}")
        return cls(REWARDS[name], **options)

    def read(self, text: str) -> Shares | None:
        """Read an answer as the forecaster does."""
        if self.asked == "digits":
            return self.outcomes.read_digits(text)
        return self.outcomes.read_points(find_object(text, {}))

    def __call__(self, text: str, outcome: int) -> float:
        """Return what the text earns."""
        return reward(self.read(text), outcome, self.weights)
