"""Forecasters on recorded kernels: order of asking and learning, scores, intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from kernelcast.bins import DEFAULT_BINS, PAPER_BINS
from kernelcast.dataset import Trial, Trials
from kernelcast.distribution import Distribution
from kernelcast.evaluation import SCORES, Answer, ask, evaluate, hindsight
from kernelcast.scoring import crps, half_brier
from kernelcast.testing import SyntheticBackend, make_kernel, make_query, synthetic_kernels
from kernelcast.types import FailureKind, Forecast, Observation, Query, Spend

BACKEND = SyntheticBackend()


def trial(index: int) -> Trial:
    query = make_query(synthetic_kernels(40)[index])
    measurement = BACKEND.measure(query.problem, query.candidate, 0)
    return Trial(
        query=query,
        ok=measurement.failure is None,
        log2_speedup=measurement.log2_speedup,
        observation=Observation(kernel=query.candidate, measurement=measurement),
    )


def trials(problem: str, indices: Sequence[int], *, ordered: bool) -> Trials:
    return Trials(problem, "d", problem, ordered, tuple(map(trial, indices)))


class Diary:
    """Notes what it is asked and told; knows the truth, blurred by `std`."""

    name = "diary"
    concurrency = 0
    refreshes = True

    def __init__(self, std: float = 0.1, bias: float = 0.0) -> None:
        self.std, self.bias = std, bias
        self.notes: list[tuple[str, str]] = []

    def quote(self, queries: Sequence[Query]) -> Spend:
        return {}

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        self.notes += [("asked", query.candidate.id) for query in queries]
        return [self._one(query) for query in queries]

    def learn(self, observations: Sequence[Observation]) -> None:
        self.notes += [("told", each.kernel.id) for each in observations]

    def _one(self, query: Query) -> Forecast:
        truth = BACKEND.measure(query.problem, query.candidate, 0).log2_speedup
        centre = 0.0 if truth is None else truth - query.anchor_log2_speedup
        return Forecast(
            forecaster=self.name,
            anchor_id=query.anchor.id,
            anchor_log2_speedup=query.anchor_log2_speedup,
            distribution=Distribution.normal(centre + self.bias, self.std),
            failure={FailureKind.CRASH: 0.9 if truth is None else 0.05},
        )


def test_a_search_is_asked_and_told_in_turn_by_a_fresh_forecaster() -> None:
    made: list[Diary] = []

    def make() -> Diary:
        made.append(Diary())
        return made[-1]

    searches = [trials("a", [0, 1, 2], ordered=True), trials("b", [3, 4], ordered=False)]
    answers = ask(make, searches)
    ids = [kernel.id for kernel in synthetic_kernels(5)]
    assert made[0].notes == [(what, key) for key in ids[:3] for what in ("asked", "told")]
    assert made[1].notes == [("asked", key) for key in ids[3:]]
    assert [each.pool for each in answers] == [0, 0, 0, 1, 1]


def answers(std: float = 0.1, bias: float = 0.0) -> list[Answer]:
    groups = [trials(f"p{at}", range(8 * at, 8 * at + 8), ordered=False) for at in range(5)]
    return ask(lambda: Diary(std, bias), groups)


def test_scores_agree_with_scoring_by_hand() -> None:
    found = evaluate(answers(0.3, 0.2))
    timed = [each for each in answers(0.3, 0.2) if each.trial.log2_speedup is not None]
    by_hand = [
        (
            crps(each.forecast.distribution, each.trial.log2_speedup or 0.0),
            half_brier(
                each.forecast.distribution.bin_probabilities(DEFAULT_BINS),
                DEFAULT_BINS.index(2.0 ** (each.trial.log2_speedup or 0.0)),
            ),
        )
        for each in timed
    ]
    assert found.timed == len(timed) < found.kernels == 40
    assert found.groups == 5
    assert found.scores["crps"].value == pytest.approx(np.mean([one for one, _ in by_hand]))
    assert found.scores["half_brier"].value == pytest.approx(np.mean([two for _, two in by_hand]))
    assert set(found.scores) == set(SCORES)


def test_who_knows_the_truth_scores_best_and_the_intervals_hold_the_value() -> None:
    good, wide, wrong = (evaluate(answers(*how)) for how in ((0.05, 0.0), (1.0, 0.0), (0.05, 1.0)))
    for name in ("crps", "half_brier", "log_score"):
        assert good.scores[name].value < wide.scores[name].value < wrong.scores[name].value
    assert good.scores["spearman"].value == pytest.approx(1.0)
    assert good.scores["auroc_failure"].value == 1.0
    assert good.scores["coverage_80"].value == 1.0
    assert wrong.scores["coverage_80"].value == 0.0
    assert all(loss.value == 0.0 for loss in good.regret.values())
    for each in good.scores.values():
        assert each.low <= each.value <= each.high


def test_hindsight_is_told_from_the_outcomes_alone() -> None:
    told = answers()
    yardstick = hindsight(told)
    rate = np.mean([not each.trial.ok for each in told])
    assert all(1.0 - each.forecast.p_ok == pytest.approx(rate) for each in yardstick)
    assert len({id(each.forecast.distribution) for each in yardstick}) == 1
    scores = evaluate(yardstick).scores
    assert math.isnan(scores["spearman"].value)
    assert scores["auroc_failure"].value == 0.5
    assert scores["crps"].value > evaluate(told).scores["crps"].value


def test_regret_needs_one_anchor() -> None:
    """A rising anchor alone would order kernels well."""
    moved = []
    for number, each in enumerate(answers()):
        anchor = make_kernel(f"int a{number};")
        moved.append(
            Answer(
                each.pool,
                each.group,
                each.forecast.model_copy(update={"anchor_id": anchor.id}),
                each.trial,
            )
        )
    found = evaluate(moved)
    assert all(math.isnan(loss.value) for loss in found.regret.values())
    assert math.isfinite(found.scores["spearman"].value)


def test_bins_can_be_the_papers() -> None:
    assert (
        evaluate(answers(0.3), PAPER_BINS).scores["half_brier"]
        != evaluate(answers(0.3)).scores["half_brier"]
    )


def test_nothing_to_judge_is_nan() -> None:
    found = evaluate([])
    assert found.kernels == 0
    assert all(math.isnan(each.value) for each in found.scores.values())
