"""Forecasters judged on recorded kernels: asked in the recorded order, scored on what came of it.

Belongs here: putting recorded questions to a forecaster, and the scores of its answers with their
uncertainty. The scores themselves are in `scoring.py`, the drawings in `report/figures.py`.

Kernels of one problem are alike, so intervals come from drawing whole problems with replacement:
they say what another set of such problems might have shown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from kernelcast.bins import DEFAULT_BINS, Bins
from kernelcast.certainty import consult
from kernelcast.dataset.trials import Trial, Trials
from kernelcast.distribution import Distribution
from kernelcast.protocols import Forecaster
from kernelcast.scoring import (
    RiskCoverage,
    aurc,
    auroc,
    expected_calibration_error,
    judge,
    log_score,
    reliability_table,
    risk_coverage,
    spearman,
    top_k_regret,
    top_share_recovery,
)
from kernelcast.types import Forecast, Query, Usage

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
"""Shares of a pool for which the regret of measuring only its best forecasts is told."""

_CLEAR_GAIN_LOG2 = math.log2(1.05)  # what counts as beating the anchor clearly
_FEWEST_TO_RANK = 5  # timed kernels before a pool's order means anything
_TOP_SHARE = 0.1
_FEWEST_DRAWN = 10  # kernels a pool: fewer could not be ranked
_DENSITY_FLOOR = 1e-4
_TIMING_NOISE_LOG2 = 0.01
_RESAMPLES = 200

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A figure, and the interval that 95% of resampled sets of problems fall into."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Questions:
    """A recorded search or pool; `asked` are the places of the kernels that are asked about."""

    search: Trials
    asked: frozenset[int]


@dataclass(frozen=True)
class Answer:
    """A forecast beside its outcome; `pool` numbers the search or pool it belongs to."""

    pool: int
    group: str
    forecast: Forecast
    trial: Trial


@dataclass(frozen=True)
class Evaluation:
    """All scores of one forecaster on one set of trials."""

    forecaster: str
    kernels: int
    timed: int
    groups: int
    scores: Mapping[str, Estimate]
    regret: Mapping[float, Estimate]
    reliability: Sequence[tuple[float, float, int]]
    risk_coverage: RiskCoverage
    usage: Usage
    unparsed: int


SCORES = {
    "accuracy": "share of kernels whose likeliest bin came true",
    "crps": "continuous ranked probability score, log2 speedup; lower is better",
    "half_brier": "half the squared error over the bins; lower is better",
    "log_score": "negative log density; lower is better",
    "ece": "gap between claimed confidence and accuracy; 0 is best",
    "coverage_80": "share of outcomes inside the 80% interval; 0.8 is best",
    "spearman": "rank correlation of forecast and true change within a search or pool",
    "top_10_found": "share of a pool's fastest tenth that is in the tenth forecast to be fastest",
    "auroc_failure": "P(a kernel that failed was given the higher chance to)",
    "auroc_gain": "P(a kernel over 5% faster than its anchor was given the higher chance to be)",
    "aurc": "mean half-Brier of the most confident, over all shares kept; lower is better",
}
"""What is told of a forecaster, and how to read it."""


def draw(
    searches: Sequence[Trials], limit: int | None = None, seed: int = 0, *, with_text: bool = False
) -> list[Questions]:
    """All kernels, or so many drawn at random, of pools that can be ranked before others.

    `with_text` leaves out kernels whose anchor's text was not published: a reader of sources could
    say nothing of them.
    """
    fit = [
        [at for at, each in enumerate(one.trials) if each.query.anchor.source or not with_text]
        for one in searches
    ]
    if limit is None:
        return [Questions(one, frozenset(at)) for one, at in zip(searches, fit, strict=True) if at]
    rng = np.random.default_rng(seed)
    left = min(limit, sum(map(len, fit)))
    most = next(n for n in count(_FEWEST_DRAWN) if sum(min(n, len(at)) for at in fit) >= left)
    drawn = []
    shuffled = rng.permutation(len(searches)).tolist()
    for number in sorted(shuffled, key=lambda number: len(fit[number]) < _FEWEST_TO_RANK):
        size = min(most, len(fit[number]), left)
        left -= size
        if size:
            chosen = rng.choice(fit[number], size, replace=False)
            drawn.append(Questions(searches[number], frozenset(chosen.tolist())))
    return drawn


def ask(make: Callable[[], Forecaster], questions: Iterable[Questions]) -> list[Answer]:
    """Put every question to a forecaster, a fresh one for each search, which learns as it goes.

    It is taught what it is not asked, too. The kernels of a pool have no order: they are all asked
    at once and nothing is learnt.
    """
    answers: list[Answer] = []
    for number, each in enumerate(questions):
        forecaster, search = make(), each.search
        if not search.ordered:
            trials = [search.trials[at] for at in sorted(each.asked)]
            told = consult(forecaster, [trial.query for trial in trials])
            answers += [
                Answer(number, search.group, forecast, trial)
                for forecast, trial in zip(told, trials, strict=True)
            ]
            continue
        for at, trial in enumerate(search.trials):
            if at in each.asked:
                (forecast,) = consult(forecaster, [trial.query])
                answers.append(Answer(number, search.group, forecast, trial))
            if trial.observation is not None:
                forecaster.learn([trial.observation])
    return answers


def asked_queries(questions: Iterable[Questions]) -> list[Query]:
    """The questions in the order of `ask`'s answers."""
    return [each.search.trials[at].query for each in questions for at in sorted(each.asked)]


def ask_at_once(
    forecaster: Forecaster, queries: Sequence[Query], on_answer: Callable[[], None]
) -> list[Forecast]:
    """The forecasts of one that does not learn, as many under way as it allows.

    An interrupt lets those under way come to their end: they are paid for.
    """
    told: dict[int, Forecast] = {}
    with ThreadPoolExecutor(max_workers=max(1, forecaster.concurrency)) as pool:
        waiting = {
            pool.submit(consult, forecaster, [query]): at for at, query in enumerate(queries)
        }
        try:
            for done in as_completed(waiting):
                (told[waiting[done]],) = done.result()
                on_answer()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return [told[at] for at in range(len(queries))]


def answered(questions: Sequence[Questions], forecasts: Sequence[Forecast]) -> list[Answer]:
    """Forecasts of `asked_queries`, each beside what came of it."""
    places = [
        (number, each.search, at)
        for number, each in enumerate(questions)
        for at in sorted(each.asked)
    ]
    return [
        Answer(number, search.group, forecast, search.trials[at])
        for (number, search, at), forecast in zip(places, forecasts, strict=True)
    ]


def hindsight(answers: Sequence[Answer]) -> list[Answer]:
    """The same questions, each answered with the frequencies of all outcomes: a yardstick.

    Whoever does not beat it has told nothing about single kernels.
    """
    timed = [each.trial.log2_speedup for each in answers if each.trial.log2_speedup is not None]
    density = (
        Distribution.from_samples(timed, _TIMING_NOISE_LOG2)
        if timed
        else Distribution.normal(0.0, 1.0)
    )
    kinds = Counter(
        each.trial.observation.measurement.failure.kind
        for each in answers
        if each.trial.observation and each.trial.observation.measurement.failure
    )
    chances = {kind: count / len(answers) for kind, count in kinds.items()}
    return [
        Answer(
            each.pool,
            each.group,
            Forecast(
                forecaster="hindsight",
                anchor_id=each.forecast.anchor_id,
                anchor_log2_speedup=each.forecast.anchor_log2_speedup,
                distribution=density,
                failure=chances,
            ),
            each.trial,
        )
        for each in answers
    ]


def evaluate(answers: Sequence[Answer], bins: Bins = DEFAULT_BINS, seed: int = 0) -> Evaluation:
    """Every score of these answers."""
    table = _Table.of(answers, bins)
    rng = np.random.default_rng(seed)
    draws = [table.resampled(rng) for _ in range(_RESAMPLES)]
    everything = table.by_group(range(len(table.members)))
    scores = {name: _estimate(table, score, everything, draws) for name, score in _SCORED.items()}
    regret = {}
    for index, share in enumerate(SHARES):

        def loss(table: _Table, chosen: _Chosen, index: int = index) -> float:
            found = np.concatenate([table.losses[group][:, index] for group in chosen.groups])
            return float(found.mean()) if found.size else math.nan

        regret[share] = _estimate(table, loss, everything, draws)
    timed = table.timed
    return Evaluation(
        forecaster=answers[0].forecast.forecaster if answers else "",
        kernels=len(answers),
        timed=int(timed.sum()),
        groups=len(table.members),
        scores=scores,
        regret=regret,
        reliability=[
            (row.mean_confidence, row.accuracy, row.count)
            for row in reliability_table(table.confidence[timed], table.correct[timed])
        ],
        risk_coverage=risk_coverage(table.confidence[timed], table.brier[timed]),
        usage=Usage.total(each.forecast.usage for each in answers),
        unparsed=sum(each.forecast.unparsed for each in answers),
    )


@dataclass(frozen=True)
class _Chosen:
    """A draw of problems: their numbers, and the rows of all of them."""

    groups: Sequence[int]
    rows: NDArray[np.int64]

    def timed(self, table: _Table) -> NDArray[np.int64]:
        return self.rows[table.timed[self.rows]]


@dataclass(frozen=True)
class _Table:
    """One entry an answer; figures of the speedup are nan where there was none.

    `correlations` hold, by problem, one entry a pool of timed kernels; `losses` and `found` one for
    each anchor in it: along a search, whose anchor rises, mere persistence would look like skill.
    """

    members: Sequence[NDArray[np.int64]]
    timed: NDArray[np.bool_]
    failed: Floats
    p_failure: Floats
    p_gain: Floats
    gain: Floats
    crps: Floats
    brier: Floats
    log_score: Floats
    confidence: Floats
    correct: Floats
    inside: Floats
    correlations: Sequence[Floats]
    losses: Sequence[Floats]
    found: Sequence[Floats]

    @classmethod
    def of(cls, answers: Sequence[Answer], bins: Bins) -> _Table:
        names = sorted({each.group for each in answers})
        place = {name: index for index, name in enumerate(names)}
        group = np.array([place[each.group] for each in answers], dtype=np.int64)
        judged = np.array([_judged(each, bins) for each in answers]).reshape(len(answers), 6)
        mean = np.array([each.forecast.distribution.mean() for each in answers])
        actual = np.array([_or_nan(each.trial.log2_speedup) for each in answers])
        timed = np.isfinite(actual)
        correlations: list[list[float]] = [[] for _ in names]
        losses: list[list[list[float]]] = [[] for _ in names]
        found: list[list[float]] = [[] for _ in names]
        pools = np.array([each.pool for each in answers], dtype=np.int64)
        for pool in np.unique(pools):
            rows = np.flatnonzero((pools == pool) & timed)
            if len(rows) < _FEWEST_TO_RANK:
                continue
            owner = group[rows[0]]
            correlation = spearman(mean[rows], actual[rows])
            if math.isfinite(correlation):
                correlations[owner].append(correlation)
            anchors = np.array([answers[row].forecast.anchor_id for row in rows.tolist()])
            for anchor in np.unique(anchors):
                alike = rows[anchors == anchor]
                if len(alike) < _FEWEST_TO_RANK:
                    continue
                guess, truth = mean[alike], actual[alike]
                found[owner].append(top_share_recovery(guess, truth, _TOP_SHARE))
                measured = [math.ceil(share * len(alike)) for share in SHARES]
                losses[owner].append(
                    [1.0 - 2.0 ** -top_k_regret(guess, truth, k) for k in measured]
                )
        return cls(
            members=[np.flatnonzero(group == index) for index in range(len(names))],
            timed=timed,
            failed=np.array([not each.trial.ok for each in answers], dtype=np.float64),
            p_failure=np.array([1.0 - each.forecast.p_ok for each in answers]),
            p_gain=np.array(
                [
                    each.forecast.p_ok
                    * each.forecast.distribution.probability_above(_CLEAR_GAIN_LOG2)
                    for each in answers
                ]
            ),
            gain=np.array(
                [
                    each.trial.log2_speedup is not None
                    and each.trial.log2_speedup > _CLEAR_GAIN_LOG2
                    for each in answers
                ],
                dtype=np.float64,
            ),
            crps=judged[:, 0],
            brier=judged[:, 1],
            log_score=judged[:, 2],
            confidence=judged[:, 3],
            correct=judged[:, 4],
            inside=judged[:, 5],
            correlations=[np.array(each) for each in correlations],
            losses=[np.array(each).reshape(len(each), len(SHARES)) for each in losses],
            found=[np.array(each) for each in found],
        )

    def by_group(self, groups: Sequence[int]) -> _Chosen:
        rows = [self.members[each] for each in groups]
        return _Chosen(groups, np.concatenate(rows) if rows else np.empty(0, dtype=np.int64))

    def resampled(self, rng: np.random.Generator) -> _Chosen:
        count = len(self.members)
        return self.by_group(rng.integers(count, size=count).tolist())


def _judged(answer: Answer, bins: Bins) -> tuple[float, ...]:
    observation, actual = answer.trial.observation, answer.trial.log2_speedup
    if observation is None or actual is None:
        return (math.nan,) * 6
    record = judge(answer.forecast, observation.measurement, blind=True, bins=bins)
    assert record is not None
    scored = (
        record.crps,
        record.half_brier,
        log_score(answer.forecast.distribution, actual, floor=_DENSITY_FLOOR),
        record.confidence,
        record.bin_correct,
        record.inside_80,
    )
    return tuple(map(_or_nan, scored))


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _mean_of(column: str) -> Callable[[_Table, _Chosen], float]:
    def mean(table: _Table, chosen: _Chosen) -> float:
        rows = chosen.timed(table)
        return float(getattr(table, column)[rows].mean()) if rows.size else math.nan

    return mean


def _calibration(table: _Table, chosen: _Chosen) -> float:
    rows = chosen.timed(table)
    return expected_calibration_error(table.confidence[rows], table.correct[rows])


def _mean_by_pool(column: str) -> Callable[[_Table, _Chosen], float]:
    def mean(table: _Table, chosen: _Chosen) -> float:
        found = np.concatenate([getattr(table, column)[group] for group in chosen.groups])
        return float(found.mean()) if found.size else math.nan

    return mean


def _failure_auroc(table: _Table, chosen: _Chosen) -> float:
    return auroc(table.p_failure[chosen.rows], table.failed[chosen.rows])


def _gain_auroc(table: _Table, chosen: _Chosen) -> float:
    return auroc(table.p_gain[chosen.rows], table.gain[chosen.rows])


def _area(table: _Table, chosen: _Chosen) -> float:
    rows = chosen.timed(table)
    return aurc(table.confidence[rows], table.brier[rows])


_SCORED: Mapping[str, Callable[[_Table, _Chosen], float]] = {
    "accuracy": _mean_of("correct"),
    "crps": _mean_of("crps"),
    "half_brier": _mean_of("brier"),
    "log_score": _mean_of("log_score"),
    "ece": _calibration,
    "coverage_80": _mean_of("inside"),
    "spearman": _mean_by_pool("correlations"),
    "top_10_found": _mean_by_pool("found"),
    "auroc_failure": _failure_auroc,
    "auroc_gain": _gain_auroc,
    "aurc": _area,
}


def _estimate(
    table: _Table,
    score: Callable[[_Table, _Chosen], float],
    everything: _Chosen,
    draws: Sequence[_Chosen],
) -> Estimate:
    if not table.members:
        return Estimate(math.nan, math.nan, math.nan)
    found = np.array([score(table, draw) for draw in draws])
    found = found[np.isfinite(found)]
    low, high = np.quantile(found, [0.025, 0.975]) if found.size else (math.nan, math.nan)
    return Estimate(score(table, everything), float(low), float(high))
