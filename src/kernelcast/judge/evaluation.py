"""Judge forecasters on recorded kernels: ask in the recorded order, score against the outcomes.

The scores themselves are in `scoring`, the figures in `report.figures`.

Kernels of one problem are alike. The intervals are therefore over problems drawn with replacement:
they show how much the scores would vary over other sets of such problems.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from kernelcast.bins import DEFAULT_BINS, Bins
from kernelcast.certainty import consult
from kernelcast.dataset.forecasts import ByRow
from kernelcast.dataset.trials import Trial, Trials
from kernelcast.distribution import Distribution
from kernelcast.protocols import Forecaster
from kernelcast.scoring import (
    RiskCoverage,
    aurc,
    auroc,
    entropy_confidence,
    expected_calibration_error,
    judge,
    likeliest_bin,
    log_score,
    margin_confidence,
    precision_and_recall,
    reliability_table,
    risk_coverage,
    spearman,
    top_k_regret,
    top_share_recovery,
)
from kernelcast.types import Forecast, Observation, Query, Usage

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
"""Shares of a pool for which `Evaluation.regret` is computed."""

_CLEAR_GAIN_LOG2 = math.log2(1.05)  # a clear gain over the anchor
_FEWEST_TO_RANK = 5  # timed kernels that make the order of a pool meaningful
_TOP_SHARE = 0.1
_FEWEST_DRAWN = 10  # kernels per pool, if it has as many
_DENSITY_FLOOR = 1e-4
_TIMING_NOISE_LOG2 = 0.01
_DIGITS = 9  # of probabilities: what differs less is equal, but for rounding
_RESAMPLES = 200

SCORES = {
    "accuracy": "share of kernels whose likeliest bin came true",
    "off_by_one": "share of kernels whose likeliest bin or a neighbour came true",
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
    "aurc_entropy": "the same; the most confident are those of least entropy over bins",
    "aurc_margin": "the same; those whose likeliest bin leads the next by most",
    "discovery_precision": "share that beat the anchor, of kernels with P(beats it) above 0.5",
    "discovery_recall": "share with P(beats the anchor) above 0.5, of kernels that beat it",
}
"""Meaning of each score of an `Evaluation`."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Estimate:
    """A score and its 95% interval over resampled sets of problems."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Questions:
    """A recorded search or pool; `asked` are the positions of the kernels to forecast."""

    search: Trials
    asked: frozenset[int]


@dataclass(frozen=True)
class Answer:
    """A forecast and the outcome; `pool` numbers the search or pool it belongs to."""

    pool: int
    group: str
    forecast: Forecast
    trial: Trial


@dataclass(frozen=True)
class Evaluation:
    """All scores of one forecaster.

    `regret` is, by the share of a pool that is measured (best forecasts first), the speed lost
    against measuring all. `reliability` lists claimed confidence, accuracy and count. `forecasts`
    are more than `kernels` if each kernel was forecast several times.
    """

    forecaster: str
    forecasts: int
    kernels: int
    timed: int
    groups: int
    scores: Mapping[str, Estimate]
    regret: Mapping[float, Estimate]
    reliability: Sequence[tuple[float, float, int]]
    risk_coverage: RiskCoverage
    usage: Usage
    unparsed: int


def draw(
    searches: Sequence[Trials], limit: int | None = None, seed: int = 0, *, with_text: bool = False
) -> list[Questions]:
    """Draw the kernels to forecast.

    Args:
        searches: Recorded searches and pools.
        limit: Number of kernels, drawn at random; pools large enough to be ranked come first. All
            kernels by default.
        seed: Seed of the draw.
        with_text: Leave out kernels whose anchor's source was not published.

    Returns:
        The searches and pools of which at least one kernel was drawn.
    """
    usable = [
        [at for at, trial in enumerate(search.trials) if trial.query.anchor.source or not with_text]
        for search in searches
    ]
    if limit is None:
        return [
            Questions(search, frozenset(at))
            for search, at in zip(searches, usable, strict=True)
            if at
        ]
    rng = np.random.default_rng(seed)
    left = min(limit, sum(map(len, usable)))
    most = next(n for n in count(_FEWEST_DRAWN) if sum(min(n, len(at)) for at in usable) >= left)
    drawn = []
    shuffled = rng.permutation(len(searches)).tolist()
    for number in sorted(shuffled, key=lambda number: len(usable[number]) < _FEWEST_TO_RANK):
        size = min(most, len(usable[number]), left)
        left -= size
        if size:
            chosen = rng.choice(usable[number], size, replace=False)
            drawn.append(Questions(searches[number], frozenset(chosen.tolist())))
    return drawn


def ask(make: Callable[[], Forecaster], questions: Iterable[Questions]) -> list[Answer]:
    """Ask a forecaster about every kernel drawn, a fresh forecaster for each search or pool.

    Along a search the forecaster learns every outcome, also of kernels that were not drawn. A pool
    has no order: all its kernels are asked at once and nothing is learnt.
    """
    asked: list[Questions] = []
    forecasts: list[Forecast] = []
    for pool in questions:
        asked.append(pool)
        forecaster = make()
        if not pool.search.ordered:
            forecasts += consult(forecaster, asked_queries([pool]))
            continue
        for at, trial in enumerate(pool.search.trials):
            forecaster.learn(trial.news)
            if at in pool.asked:
                forecasts += consult(forecaster, [trial.query])
    return answered(asked, forecasts)


def asked_queries(questions: Iterable[Questions]) -> list[Query]:
    """Return the queries in the order of `ask`'s answers."""
    return [trial.query for _, _, trial in _asked(questions)]


def known_then(questions: Iterable[Questions]) -> list[tuple[Observation, ...]]:
    """Return what was measured before each of `asked_queries`; nothing in a pool."""
    known: list[tuple[Observation, ...]] = []
    for pool in questions:
        measured: tuple[Observation, ...] = ()
        for at, trial in enumerate(pool.search.trials):
            measured += trial.news
            if at in pool.asked:
                known.append(measured)
    return known


def answered(questions: Iterable[Questions], forecasts: Sequence[Forecast]) -> list[Answer]:
    """Pair the forecasts of `asked_queries` with their outcomes."""
    return [
        Answer(pool, group, forecast, trial)
        for (pool, group, trial), forecast in zip(_asked(questions), forecasts, strict=True)
    ]


def recorded_answers(questions: Sequence[Questions], recorded: ByRow) -> list[Answer]:
    """Answer with recorded forecasts; each repeat of a pool is a pool of its own."""
    return [
        Answer(pool + repeat * len(questions), group, forecast.about(trial.query), trial)
        for pool, group, trial in _asked(questions)
        for repeat, forecast in enumerate(recorded[trial.row_id])
    ]


def _asked(questions: Iterable[Questions]) -> Iterator[tuple[int, str, Trial]]:
    for number, pool in enumerate(questions):
        for at in sorted(pool.asked):
            yield number, pool.search.group, pool.search.trials[at]


def ask_at_once(
    asked: Sequence[tuple[Forecaster, Query]], on_answer: Callable[[], None]
) -> list[Forecast]:
    """Ask forecasters that need not learn, with as many queries in flight as they allow.

    An interrupt waits for the queries in flight, which are paid for, and cancels the others.
    """
    most = max((forecaster.concurrency for forecaster, _ in asked), default=0)
    with ThreadPoolExecutor(max_workers=max(1, most)) as pool:
        futures = [pool.submit(consult, forecaster, [query]) for forecaster, query in asked]
        try:
            for future in as_completed(futures):
                future.result()
                on_answer()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return [future.result()[0] for future in futures]


def hindsight(answers: Sequence[Answer]) -> list[Answer]:
    """Answer the same queries with the frequencies of all outcomes.

    A forecaster that does not score better than this knows nothing about single kernels.
    """
    trials = [answer.trial for answer in answers]
    timed = [trial.log2_speedup for trial in trials if trial.log2_speedup is not None]
    density = (
        Distribution.from_samples(timed, _TIMING_NOISE_LOG2)
        if timed
        else Distribution.normal(0.0, 1.0)
    )
    failures = [trial.observation.measurement.failure for trial in trials if trial.observation]
    kinds = Counter(failure.kind for failure in failures if failure)
    chances = {kind: number / len(answers) for kind, number in kinds.items()}
    return [
        replace(
            answer,
            forecast=Forecast(
                forecaster="hindsight",
                anchor_id=answer.forecast.anchor_id,
                anchor_log2_speedup=answer.forecast.anchor_log2_speedup,
                distribution=density,
                failure=chances,
            ),
        )
        for answer in answers
    ]


def evaluate(answers: Sequence[Answer], bins: Bins = DEFAULT_BINS, seed: int = 0) -> Evaluation:
    """Compute every score of these answers.

    Args:
        answers: What `ask` or `answered` returned.
        bins: Bins of the speedup for accuracy, Brier score and calibration.
        seed: Seed of the resampling.
    """
    table = _Table.of(answers, bins)
    problems = len(table.members)
    values = _scores(table, range(problems))
    rng = np.random.default_rng(seed)
    draws = [
        _scores(table, rng.integers(problems, size=problems).tolist())
        for _ in range(_RESAMPLES if problems else 0)
    ]
    estimates = {}
    for name, value in values.items():
        drawn = np.array([scores[name] for scores in draws])
        drawn = drawn[np.isfinite(drawn)]
        low, high = np.quantile(drawn, [0.025, 0.975]) if drawn.size else (math.nan, math.nan)
        estimates[name] = Estimate(value, float(low), float(high))
    timed = table.timed(np.arange(len(answers)))
    confidence = table.columns["confidence"][timed]
    return Evaluation(
        forecaster=answers[0].forecast.forecaster if answers else "",
        forecasts=len(answers),
        kernels=_kernels(answers),
        timed=_kernels([answers[at] for at in timed.tolist()]),
        groups=problems,
        scores={name: estimates[name] for name in SCORES},
        regret={share: estimates[_loss(share)] for share in SHARES},
        reliability=[
            (bucket.mean_confidence, bucket.accuracy, bucket.count)
            for bucket in reliability_table(confidence, table.columns["accuracy"][timed])
        ],
        risk_coverage=risk_coverage(confidence, table.columns["half_brier"][timed]),
        usage=Usage.total(answer.forecast.usage for answer in answers),
        unparsed=sum(answer.forecast.unparsed for answer in answers),
    )


def _kernels(answers: Sequence[Answer]) -> int:
    return len({id(answer.trial) for answer in answers})


_JUDGED = (
    *("crps", "half_brier", "log_score", "accuracy", "off_by_one", "coverage_80"),
    *("confidence", "entropy", "margin"),
)
_COLUMNS = (
    *(*_JUDGED, "mean", "actual", "failed", "p_failure", "gain", "p_gain"),
    *("beats", "said_to_beat"),
)


@dataclass(frozen=True)
class _Table:
    """Figures of all answers.

    `members` are the answers of each problem. `columns` have one entry per answer; figures of the
    speedup are nan for a kernel that was not timed. `pools` have, per problem, one entry for each
    pool ("spearman") or for each anchor in it (the others): the anchor of a search rises, so that
    persistence alone would look like skill.
    """

    members: Sequence[Ints]
    columns: Mapping[str, Floats]
    pools: Mapping[str, Sequence[Sequence[float]]]

    @classmethod
    def of(cls, answers: Sequence[Answer], bins: Bins) -> _Table:
        names, group = np.unique([answer.group for answer in answers], return_inverse=True)
        rows = np.array([_row(answer, bins) for answer in answers], dtype=np.float64)
        columns = dict(zip(_COLUMNS, rows.reshape(len(answers), len(_COLUMNS)).T, strict=True))
        mean, actual = columns["mean"], columns["actual"]
        ranked = ("spearman", "top_10_found", *map(_loss, SHARES))
        pools: dict[str, list[list[float]]] = {name: [[] for _ in names] for name in ranked}
        # Answers of several calls of `ask` repeat pool numbers, but not within one problem.
        numbers = np.array([a.pool * len(names) for a in answers], dtype=np.int64) + group
        for pool in np.unique(numbers):
            timed = np.flatnonzero((numbers == pool) & np.isfinite(actual))
            if len(timed) < _FEWEST_TO_RANK:
                continue
            problem = group[timed[0]]
            correlation = spearman(mean[timed], actual[timed])
            if math.isfinite(correlation):
                pools["spearman"][problem].append(correlation)
            anchors = np.array([answers[at].forecast.anchor_id for at in timed.tolist()])
            for anchor in np.unique(anchors):
                alike = timed[anchors == anchor]
                if len(alike) < _FEWEST_TO_RANK:
                    continue
                guess, truth = mean[alike], actual[alike]
                recovered = top_share_recovery(guess, truth, _TOP_SHARE)
                pools["top_10_found"][problem].append(recovered)
                for share in SHARES:
                    regret = top_k_regret(guess, truth, math.ceil(share * len(alike)))
                    pools[_loss(share)][problem].append(1.0 - 2.0**-regret)
        members = [np.flatnonzero(group == problem) for problem in range(len(names))]
        return cls(members, columns, pools)

    def timed(self, rows: Ints) -> Ints:
        return rows[np.isfinite(self.columns["actual"][rows])]


def _loss(share: float) -> str:
    return f"loss at {share:g}"


def _row(answer: Answer, bins: Bins) -> tuple[float | None, ...]:
    """Return the figures of one answer in the order of `_COLUMNS`; None becomes nan."""
    forecast, trial = answer.forecast, answer.trial
    judged: tuple[float | None, ...] = (None,) * len(_JUDGED)
    actual = trial.log2_speedup
    if trial.observation is not None and actual is not None:
        record = judge(forecast, trial.observation.measurement, blind=True, bins=bins)
        assert record is not None
        probabilities = forecast.distribution.bin_probabilities(bins)
        confidences = (
            max(probabilities),
            entropy_confidence(probabilities),
            margin_confidence(probabilities),
        )
        judged = (
            record.crps,
            record.half_brier,
            log_score(forecast.distribution, actual, floor=_DENSITY_FLOOR),
            record.bin_correct,
            abs(likeliest_bin(probabilities) - bins.index(2.0**actual)) <= 1,
            record.inside_80,
            *(round(confidence, _DIGITS) for confidence in confidences),
        )
    return (
        *judged,
        forecast.distribution.mean(),
        actual,
        not trial.ok,
        1.0 - forecast.p_ok,
        actual is not None and actual > _CLEAR_GAIN_LOG2,
        forecast.p_ok * forecast.distribution.probability_above(_CLEAR_GAIN_LOG2),
        None if trial.ok and actual is None else actual is not None and actual > 0.0,
        round(forecast.p_ok * forecast.distribution.probability_above(0.0), _DIGITS) > 0.5,
    )


def _scores(table: _Table, problems: Sequence[int]) -> dict[str, float]:
    """Compute all scores over these problems, of which some may be there several times."""
    members = [table.members[problem] for problem in problems]
    rows = np.concatenate([np.empty(0, dtype=np.int64), *members])
    every = {name: column[rows] for name, column in table.columns.items()}
    timed = {name: column[table.timed(rows)] for name, column in table.columns.items()}
    averaged = ("accuracy", "off_by_one", "crps", "half_brier", "log_score", "coverage_80")
    known = np.isfinite(every["beats"])
    discovery = precision_and_recall(every["said_to_beat"][known], every["beats"][known])
    return {
        **{name: _mean(timed[name]) for name in averaged},
        **{
            name: _mean(np.concatenate([[], *(values[problem] for problem in problems)]))
            for name, values in table.pools.items()
        },
        "ece": expected_calibration_error(timed["confidence"], timed["accuracy"]),
        "auroc_failure": auroc(every["p_failure"], every["failed"]),
        "auroc_gain": auroc(every["p_gain"], every["gain"]),
        "aurc": aurc(timed["confidence"], timed["half_brier"]),
        "aurc_entropy": aurc(timed["entropy"], timed["half_brier"]),
        "aurc_margin": aurc(timed["margin"], timed["half_brier"]),
        "discovery_precision": discovery[0],
        "discovery_recall": discovery[1],
    }


def _mean(values: Floats) -> float:
    return float(values.mean()) if values.size else math.nan
