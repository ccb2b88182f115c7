"""Forecasters on recorded kernels: order of asking and learning, scores, intervals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from threading import Event

import numpy as np
import pytest

from kernelcast.bins import DEFAULT_BINS, PAPER_BINS
from kernelcast.dataset import RecordedForecast, Trial, Trials
from kernelcast.distribution import Distribution
from kernelcast.errors import SetupError
from kernelcast.judge.evaluation import (
    SCORES,
    Answer,
    answered,
    ask,
    ask_at_once,
    asked_queries,
    draw,
    evaluate,
    hindsight,
    known_then,
    recorded_answers,
)
from kernelcast.scoring import crps, half_brier, top_share_recovery
from kernelcast.testing import SyntheticBackend, make_kernel, make_query, synthetic_kernels
from kernelcast.types import (
    Failure,
    FailureKind,
    Forecast,
    Observation,
    Query,
    Spend,
    Timing,
    Usage,
)

BACKEND = SyntheticBackend()
KERNELS = synthetic_kernels(40)


def trial(index: int) -> Trial:
    query = make_query(KERNELS[index])
    measurement = BACKEND.measure(query.problem, query.candidate, 0)
    return Trial(
        query=query,
        ok=measurement.failure is None,
        log2_speedup=measurement.log2_speedup,
        observation=Observation(kernel=query.candidate, measurement=measurement),
    )


def trials(problem: str, indices: Sequence[int], *, ordered: bool) -> Trials:
    members = list(map(trial, indices))
    if ordered:
        members[1:] = [
            replace(one, news=(before.observation,) if before.observation else ())
            for before, one in itertools.pairwise(members)
        ]
    return Trials(problem, "d", problem, ordered, tuple(members))


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
    answers = ask(make, draw(searches))
    ids = [kernel.id for kernel in synthetic_kernels(5)]
    notes = [(what, key) for key in ids[:3] for what in ("asked", "told")]
    assert made[0].notes == notes[:-1]
    assert made[1].notes == [("asked", key) for key in ids[3:]]
    assert [each.pool for each in answers] == [0, 0, 0, 1, 1]


def answers(std: float = 0.1, bias: float = 0.0) -> list[Answer]:
    groups = [trials(f"p{at}", range(8 * at, 8 * at + 8), ordered=False) for at in range(5)]
    return ask(lambda: Diary(std, bias), draw(groups))


def test_what_is_not_asked_is_taught_all_the_same() -> None:
    search = trials("a", range(20), ordered=True)
    diary = Diary()
    (questions,) = draw([search], limit=5)
    told = ask(lambda: diary, [questions])
    ids = [kernel.id for kernel in synthetic_kernels(20)]
    assert [key for what, key in diary.notes if what == "told"] == ids[:-1]
    assert [key for what, key in diary.notes if what == "asked"] == [
        ids[at] for at in sorted(questions.asked)
    ]
    assert [each.trial.query.candidate.id for each in told] == [
        ids[at] for at in sorted(questions.asked)
    ]


def test_a_draw_takes_kernels_enough_to_rank_of_some_problems() -> None:
    pools = [trials(f"p{at}", range(20), ordered=False) for at in range(6)]
    pools += [trials(f"small {at}", range(2), ordered=False) for at in range(50)]
    drawn = draw(pools, limit=25, seed=1)
    assert [len(each.asked) for each in drawn] == [10, 10, 5]
    assert all(len(each.search.trials) == 20 for each in drawn)
    assert draw(pools, limit=25, seed=1) == drawn
    assert draw(pools, limit=25, seed=2) != drawn
    assert sum(len(each.asked) for each in draw(pools, limit=200)) == 200
    assert sum(len(each.asked) for each in draw(pools, limit=1000)) == 6 * 20 + 50 * 2
    assert draw([], limit=3) == []


def test_a_reader_of_sources_is_not_asked_about_unpublished_ones() -> None:
    search = trials("a", range(4), ordered=True)
    silent = search.trials[1].query.anchor.model_copy(update={"source": ""})
    query = search.trials[1].query.model_copy(update={"anchor": silent})
    changed = (search.trials[0], replace(search.trials[1], query=query), *search.trials[2:])
    search = replace(search, trials=changed)
    assert draw([search])[0].asked == {0, 1, 2, 3}
    assert draw([search], with_text=True)[0].asked == {0, 2, 3}
    assert draw([replace(search, trials=changed[1:2])], with_text=True) == []


class Slow(Diary):
    """Answers what was asked first after what was asked second; hangs unless both are asked."""

    concurrency = 2

    def __init__(self) -> None:
        super().__init__()
        self.number = itertools.count()
        self.second_is_answered = Event()

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        number = next(self.number)
        if number == 0:
            assert self.second_is_answered.wait(300)
        told = super().forecast(queries)
        if number == 1:
            self.second_is_answered.set()
        return told


def test_who_does_not_learn_is_asked_several_at_once_and_told_apart() -> None:
    questions = draw([trials("a", range(9), ordered=True), trials("b", range(3), ordered=False)])
    slow, done = Slow(), []
    asked = [(slow, query) for query in asked_queries(questions)]
    forecasts = ask_at_once(asked, lambda: done.append(1))
    assert len(done) == len(forecasts) == 12
    assert answered(questions, forecasts) == ask(Diary, questions)


def test_what_was_known_at_a_question_is_what_its_search_had_measured() -> None:
    questions = draw([trials("a", range(5), ordered=True), trials("b", range(3), ordered=False)])
    known = known_then(questions)
    assert len(known) == len(asked_queries(questions)) == 8
    of_search = questions[0].search.trials
    for at in range(5):
        news = [observation for trial in of_search[: at + 1] for observation in trial.news]
        assert list(known[at]) == news
    assert len(known[4]) > len(known[0])
    assert known[5:] == [()] * 3


class Refusing(Diary):
    concurrency = 1

    def forecast(self, queries: Sequence[Query]) -> list[Forecast]:
        if self.notes:
            raise SetupError("pay first")
        return super().forecast(queries)


def test_a_broken_set_up_ends_the_asking_at_once() -> None:
    refusing = Refusing()
    queries = asked_queries(draw([trials("a", range(30), ordered=False)]))
    with pytest.raises(SetupError, match="pay first"):
        ask_at_once([(refusing, query) for query in queries], lambda: None)
    assert len(refusing.notes) == 1


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


def test_the_share_of_the_fastest_that_is_found() -> None:
    truth = [float(at) for at in range(20)]
    assert top_share_recovery(truth, truth, 0.1) == 1.0
    assert top_share_recovery([-each for each in truth], truth, 0.1) == 0.0
    assert top_share_recovery([0.0] * 20, truth, 0.1) == pytest.approx(0.1)
    half = [*truth[:18], 30.0, -1.0]
    assert top_share_recovery(half, truth, 0.1) == 0.5
    # Of the true fastest three, two are tied for one place: each counts a half.
    assert top_share_recovery([3.0, 2.0, 0.0], [5.0, 4.0, 4.0], 0.5) == pytest.approx(0.75)
    with pytest.raises(ValueError, match="at least one"):
        top_share_recovery([], [], 0.1)
    good, wrong = (evaluate(answers(*how)).scores["top_10_found"] for how in ((0.1,), (0.1, 1.0)))
    assert good.value == wrong.value == 1.0
    assert evaluate(hindsight(answers())).scores["top_10_found"].value == pytest.approx(0.14, 0.2)


def test_what_was_spent_and_could_not_be_read_is_told() -> None:
    told = answers()
    usage = Usage(input_tokens=10, output_tokens=2, usd=0.5, seconds=1.0)
    paid = [
        replace(each, forecast=each.forecast.model_copy(update={"usage": usage, "unparsed": odd}))
        for each, odd in zip(told, itertools.cycle((True, False)), strict=False)
    ]
    found = evaluate(paid)
    assert (found.usage.input_tokens, found.usage.output_tokens) == (400, 80)
    assert found.usage.usd == 20.0
    assert found.unparsed == 20


def test_regret_is_told_for_each_anchor_of_a_search() -> None:
    """Kernels of one anchor are compared with each other alone."""
    second = make_kernel("int second;").id
    moved = [
        replace(each, forecast=each.forecast.model_copy(update={"anchor_id": second}))
        if number % 40 < 20
        else each
        for number, each in enumerate(ask(Diary, draw([trials("a", range(40), ordered=True)])))
    ]
    scores = evaluate(moved)
    assert scores.scores["top_10_found"].value == 1.0
    assert all(loss.value == 0.0 for loss in scores.regret.values())


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


TIMING = Timing(
    log2_speedup=0.0, low=0.0, high=0.0, resolved=True, runtime_s=1.0, reference_runtime_s=1.0,
    cases=(),
)  # fmt: skip


def told(*centres_and_truths: tuple[float, float | None], p_ok: float = 1.0) -> list[Answer]:
    """Sure forecasts at these log2 speedups, beside these outcomes; None is a failure."""
    kernels = iter(synthetic_kernels(len(centres_and_truths)))
    found = []
    for centre, truth in centres_and_truths:
        query = make_query(next(kernels))
        measured = BACKEND.measure(query.problem, query.candidate, 0)
        update = dict.fromkeys(("log2_speedup", "low", "high"), truth)
        timing = None if truth is None else TIMING.model_copy(update=update)
        failure = Failure(kind=FailureKind.CRASH, message="") if truth is None else None
        measured = measured.model_copy(update={"timing": timing, "failure": failure})
        forecast = Forecast(
            forecaster="sure",
            anchor_id=query.anchor.id,
            anchor_log2_speedup=0.0,
            distribution=Distribution.normal(centre, 1e-3),
            failure={FailureKind.CRASH: 1.0 - p_ok},
        )
        outcome = Observation(kernel=query.candidate, measurement=measured)
        found.append(Answer(0, "g", forecast, Trial(query, truth is not None, truth, outcome)))
    return found


def test_a_neighbour_of_the_true_bin_is_off_by_one() -> None:
    # The paper's bins are one octave wide or half of one: 0.25 is a neighbour of 0.75, not of 1.5.
    found = evaluate(told((0.25, 0.3), (0.25, 0.75), (0.25, -0.25), (0.25, 1.5)), PAPER_BINS)
    assert found.scores["accuracy"].value == 0.25
    assert found.scores["off_by_one"].value == 0.75


def test_discovery_counts_failures_as_not_faster() -> None:
    cases = ((1.0, 0.5), (1.0, -0.5), (1.0, None), (-1.0, 0.2), (-1.0, -0.2))
    found = evaluate(told(*cases)).scores
    assert found["discovery_precision"].value == pytest.approx(1 / 3)
    assert found["discovery_recall"].value == 0.5
    likely_to_fail = evaluate(told(*cases, p_ok=0.5)).scores
    assert math.isnan(likely_to_fail["discovery_precision"].value)
    assert likely_to_fail["discovery_recall"].value == 0.0


def test_a_right_kernel_that_was_not_timed_is_no_discovery_or_miss() -> None:
    (timed, other) = told((1.0, 0.5), (1.0, 0.5))
    untimed = replace(other.trial, log2_speedup=None, observation=None)
    found = evaluate([timed, replace(other, trial=untimed)]).scores
    assert found["discovery_precision"].value == found["discovery_recall"].value == 1.0


def recorded(repeat: int, *mass: float) -> RecordedForecast:
    return RecordedForecast(
        key="k", problem="p", occurrence=1, forecaster="m", repeat=repeat, bins="paper",
        probabilities=mass or None, raw_probability_sum=None, unparsed=not mass,
        input_tokens=7, output_tokens=None, seconds=2.0,
    )  # fmt: skip


def test_every_repeat_of_a_recorded_forecast_is_an_answer_in_a_pool_of_its_own() -> None:
    pool = trials("a", range(6), ordered=False)
    named = [replace(one, row_id=str(at)) for at, one in enumerate(pool.trials)]
    questions = draw([replace(pool, trials=tuple(named)), trials("b", [], ordered=False)])
    sure = (0.0,) * 7 + (1.0,)
    by_row = {str(at): [recorded(0, *sure), recorded(1)] for at in range(6)}
    answers = recorded_answers(questions, by_row)
    assert [each.pool for each in answers] == [0, len(questions)] * 6
    found = evaluate(answers, PAPER_BINS)
    assert (found.forecasts, found.kernels, found.unparsed) == (12, 6, 6)
    assert found.usage.input_tokens == 84
    assert answers[0].forecast.distribution.bin_probabilities(PAPER_BINS) == sure
    assert answers[1].forecast.distribution.bin_probabilities(PAPER_BINS) == (0.125,) * 8


def test_nothing_to_judge_is_nan() -> None:
    found = evaluate([])
    assert found.kernels == 0
    assert all(math.isnan(each.value) for each in found.scores.values())
