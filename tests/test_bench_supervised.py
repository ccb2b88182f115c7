"""What `bench/supervised.py` computes of losses, prompts, pairs and forecasts."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="needs the extra: pip install 'kernelcast[data]'")
pytest.importorskip("torch", reason="needs the extra: pip install 'kernelcast[train]'")
pytest.importorskip("transformers", reason="needs the extra: pip install 'kernelcast[train]'")
pytest.importorskip("trl", reason="needs the extra: pip install 'kernelcast[train]'")

import rewards_small
import supervised
from _data import Configuration, Space
from kernelcast.bins import DEFAULT_BINS
from kernelcast.canonical import canonical_parameters
from kernelcast.outcomes import CAUSES, Outcomes
from kernelcast.testing import make_query, synthetic_kernels, synthetic_problem
from kernelcast.training.pairs import Question
from rewards_small import Pair
from supervised import ChancesForecaster, Letters, Recipe


def space(gpu: str, scale: float = 1.0) -> Space:
    """A made-up space in which the largest blocks are the slowest, and one fails."""
    configurations: tuple[Configuration, ...] = tuple(
        {"block": block, "tile": tile} for block in (16, 32, 64, 128) for tile in (1, 2, 4, 8)
    )
    times = [scale * int(c["block"]) * (1 + 0.1 * int(c["tile"])) for c in configurations]
    return Space(
        problem="hub/conv",
        family="tuned/conv",
        gpu=gpu,
        vendor="nvidia",
        parameters=("block", "tile"),
        configurations=configurations,
        keys=tuple(map(canonical_parameters, configurations)),
        runtime_ms=np.array([*times[:-1], np.inf]),
        device_s=None,
    )


def test_a_difference_counts_losses_and_its_interval_is_over_groups() -> None:
    lower, higher = np.array([0.1, 0.2, 0.3, 0.1]), np.array([0.2, 0.3, 0.4, 0.5])
    found = supervised.difference(lower, higher, ["one", "one", "one", "two"])
    assert found["mean"] == pytest.approx(-0.175)
    assert found["interval"] == pytest.approx([-0.4, -0.1])  # either group alone
    same = supervised.difference(lower, lower, ["one", "one", "one", "two"])
    assert same == {"mean": 0.0, "interval": [0.0, 0.0]}


@pytest.mark.parametrize(
    ("crps", "half_brier", "expected"),
    [
        ([-0.3, -0.1], [-0.2, -0.1], "supervised"),
        ([0.1, 0.3], [0.1, 0.2], "trees"),
        ([-0.3, 0.1], [-0.2, -0.1], "none"),
        ([-0.3, -0.1], [0.1, 0.2], "none"),
    ],
)
def test_a_winner_is_ahead_in_both_losses(
    crps: list[float], half_brier: list[float], expected: str
) -> None:
    differences = {"crps": {"interval": crps}, "half_brier": {"interval": half_brier}}
    assert supervised.winner(differences) == expected


def test_pairs_as_they_come_are_the_second_half_of_each_space() -> None:
    spaces = [space("NVIDIA A100"), space("NVIDIA H100")]
    pairs = rewards_small.drawn(spaces, 6, seed=0)
    assert supervised.as_they_come(pairs).tolist() == [False] * 3 + [True] * 3 + [
        *([False] * 3 + [True] * 3)
    ]


def test_the_trees_read_the_times_of_the_training_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    target, other = space("NVIDIA A100"), space("NVIDIA H100", 0.5)
    pair = Pair(target, anchor=0, candidate=12)  # 8 times as slow
    expected = np.arange(DEFAULT_BINS.count)
    means = []
    for known in ([], [other]):
        monkeypatch.setattr(rewards_small, "trained_spaces", lambda *, tune, k=known: k)
        chances = supervised.asked_trees([pair])
        assert chances.shape == (1, Outcomes().count)
        assert not chances[0, : len(CAUSES)].any()
        assert chances.sum() == pytest.approx(1.0)
        means.append(float(chances[0, len(CAUSES) :] @ expected))
    assert means[1] < means[0]


def prompt(candidate: str) -> str:
    """A prompt of the sections that a forecaster sends."""
    return f"""# Problem
sol/L1: shapes and dtypes are not stated

# Anchor: 0.0385 ms, 1.58 times as fast as the reference
Compiled: not known.
import secret

# Measured in this run
- 0.973 times as fast as the anchor: + {" ".join(["long"] * 20)}
- fails (wrong result): - v2 = 1

# Candidate
{candidate}"""


def test_a_prompt_keeps_what_tells_kernels_apart() -> None:
    change = "@@ -1 +1 @@\n-v13 = v2\n+v14 = v3 " + "more " * 200
    messages = (
        {"role": "system", "content": "a long guide"},
        {"role": "user", "content": prompt(change)},
    )
    (short,) = supervised.shortened_prompt(messages)
    speed, ahead, fails, removed, added = short["content"].split("\n")
    assert speed.split() == ["1", ".", "5", "8", "times", "as", "fast", "as", "the", "reference"]
    assert ahead.split() == ["-", "0", ".", "9", "73", "times", "as", "fast", "as"]
    assert fails.split()[:6] == ["-", "fails", "(", "wrong", "result", ")"]
    assert removed.split() == ["-", "v", "=", "v"]
    assert added.split()[:5] == ["+", "v", "=", "v", "more"]
    candidate = fails.split()[9:] + removed.split() + added.split()
    assert len(candidate) == supervised._READ_OF_CANDIDATE


def test_letters_are_learnt_and_read_as_a_forecast() -> None:
    learnt = [
        supervised.shortened_question(
            Question(
                ({"role": "user", "content": prompt(f"{word} " * 40)},),
                outcome,
                "ABCDEFGHIJKLM"[outcome],
                problem=f"problem {number}",
            )
        )
        for word, outcome in (("slow", 5), ("fails", 0))
        for number in range(16)
    ]
    recipe = Recipe(steps=60, learning_rate=5e-3, seed=0, batch=8, looked_every=10)
    model, course = supervised.trained(learnt, recipe)
    losses = course["losses"]
    assert losses["kept"]["new_problems"] <= losses["last"]["new_problems"]
    assert losses["last"]["training"] < 0.2 < losses["base_rates"]["training"]

    class Shown:
        def __init__(self, text: str) -> None:
            self.text = text

        def of(self, *_: object) -> list[list[dict[str, str]]]:
            return [[{"role": "user", "content": self.text}]]

    query = make_query(synthetic_kernels(1)[0], synthetic_problem())
    forecasts = []
    for word in ("slow", "fails"):
        letters = Letters(model, Shown(prompt(f"{word} " * 40)))  # type: ignore[arg-type]
        (forecast,) = ChancesForecaster("supervised", letters).forecast([query])
        forecasts.append(forecast)
    slow, fails = forecasts
    assert slow.p_ok > 0.9 > 0.1 > fails.p_ok
    assert slow.distribution.mean() < -0.5
