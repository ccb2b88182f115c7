"""Scores of forecasts: accuracy, calibration, ranking, and confidence.

Pure functions from forecasts and outcomes to numbers. A score that is undefined (empty input,
constant ranking) is nan, so that a table of results can still be printed.
"""

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kernelcast.bins import DEFAULT_BINS, Bins
from kernelcast.distribution import Distribution
from kernelcast.events import CalibrationRecord
from kernelcast.types import SMALLEST_CLAIM_LOG2, Forecast, Measurement

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ReliabilityRow:
    """One bucket of claimed confidence: `low <= confidence < high` (the last includes 1)."""

    low: float
    high: float
    count: int
    mean_confidence: float
    accuracy: float


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """Risk-coverage curve: `risk[i]` is the mean loss of the most confident share `coverage[i]`."""

    coverage: Floats
    risk: Floats


def half_brier(probabilities: ArrayLike, outcome: int) -> float:
    """Half the squared distance to the outcome; 0 (sure and right) to 1 (sure and wrong).

    Args:
        probabilities: at least two that sum to 1, one a bin.
        outcome: index of the bin that happened.

    Raises:
        ValueError: the probabilities do not sum to 1, or there is no such bin.
    """
    p = _probabilities(probabilities, outcome)
    return float(p @ p + 1.0 - 2.0 * p[outcome]) / 2.0


def ordinal_crps(probabilities: ArrayLike, outcome: int) -> float:
    """Ranked probability score over ordered bins, mean over the edges; 0 (best) to 1.

    Unlike `half_brier`, it forgives a near miss. Arguments and errors are the same.
    """
    p = _probabilities(probabilities, outcome)
    below = np.cumsum(p)[:-1]
    return float(np.mean((below - (np.arange(p.size - 1) >= outcome)) ** 2))


def likeliest_bin(probabilities: ArrayLike) -> int:
    """Index of the likeliest bin, the lowest of several: a difference of 1e-9 is rounding."""
    p = _probabilities(probabilities)
    return int(np.argmax(p > p.max() - 1e-9))


def entropy_confidence(probabilities: ArrayLike) -> float:
    """One less the entropy over that of equal probabilities; 0 (all equal) to 1 (sure)."""
    p = _probabilities(probabilities)
    some = p[p > 0.0]
    entropy = -float(some @ np.log(some))
    return min(1.0, max(0.0, 1.0 - entropy / math.log(p.size)))


def margin_confidence(probabilities: ArrayLike) -> float:
    """Lead of the likeliest bin over the next; 0 (tied) to 1 (sure)."""
    second, first = np.sort(_probabilities(probabilities))[-2:]
    return float(first - second)


def precision_and_recall(claimed: ArrayLike, actual: ArrayLike) -> tuple[float, float]:
    """Share of the claimed that came true, and share of the true that was claimed; 0 to 1 (all).

    The first is nan if nothing was claimed, the second if nothing came true.
    """
    said, true = _paired(claimed, actual)
    hits = float(np.sum((said > 0.0) & (true > 0.0)))
    claims, events = (float(np.sum(values > 0.0)) for values in (said, true))
    return hits / claims if claims else math.nan, hits / events if events else math.nan


def log_score(distribution: Distribution, log2_speedup: float, *, floor: float = 0.0) -> float:
    """Negative natural log of the density at the outcome; lower is better, and may be negative.

    The score is infinite where the density is 0. A `floor` on the density keeps it finite, but
    makes the score not quite proper.
    """
    density = max(distribution.density(log2_speedup), floor)
    return -math.log(density) if density > 0.0 else math.inf


def crps(distribution: Distribution, log2_speedup: float) -> float:
    """Exact continuous ranked probability score in log2 speedup; 0 (best) to infinity.

    For a forecast with all mass on one point it is the absolute error.
    """
    knots, values = distribution.knots, distribution.cdf_values
    below, above = bisect_left(knots, log2_speedup), bisect_right(knots, log2_speedup)
    chance = distribution.cdf(log2_speedup)
    before = np.array([*knots[:below], log2_speedup])
    after = np.array([log2_speedup, *knots[above:]])
    return _integral_of_square(before, np.array([*values[:below], chance])) + _integral_of_square(
        after, 1.0 - np.array([chance, *values[above:]])
    )


def reliability_table(
    confidences: ArrayLike, correct: ArrayLike, buckets: int = 10
) -> tuple[ReliabilityRow, ...]:
    """Claimed confidence against accuracy in equal-width buckets; empty buckets are left out."""
    claimed, right = _paired(confidences, correct)
    if np.any((claimed < 0.0) | (claimed > 1.0)):
        raise ValueError("a confidence lies between 0 and 1")
    edges = np.arange(buckets + 1) / buckets
    bucket = np.minimum(np.searchsorted(edges, claimed, side="right") - 1, buckets - 1)
    return tuple(
        ReliabilityRow(
            low=float(edges[index]),
            high=float(edges[index + 1]),
            count=int(np.sum(bucket == index)),
            mean_confidence=float(claimed[bucket == index].mean()),
            accuracy=float(right[bucket == index].mean()),
        )
        for index in np.unique(bucket)
    )


def expected_calibration_error(
    confidences: ArrayLike, correct: ArrayLike, buckets: int = 10
) -> float:
    """Mean gap between claimed confidence and accuracy, by bucket; 0 (best) to 1."""
    rows = reliability_table(confidences, correct, buckets)
    if not rows:
        return math.nan
    gaps = sum(row.count * abs(row.mean_confidence - row.accuracy) for row in rows)
    return gaps / sum(row.count for row in rows)


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Rank correlation, ties by average rank; -1 to 1 (same order), nan if either is constant."""
    from scipy.stats import spearmanr  # takes a second to import

    first, second = _paired(a, b)
    if first.size == 0 or np.ptp(first) == 0.0 or np.ptp(second) == 0.0:
        return math.nan
    return float(spearmanr(first, second).statistic)


def top_k_regret(predicted: ArrayLike, actual: ArrayLike, k: int) -> float:
    """Best actual log2 speedup of all less the best of the `k` best predicted; 0 is best.

    Where a tie in `predicted` leaves open which k, it is the mean over every choice.
    """
    guess, truth = _paired(predicted, actual)
    if k < 1 or guess.size == 0:
        raise ValueError("top_k_regret needs k of at least 1 and at least one candidate")
    k = min(k, guess.size)
    cut = np.sort(guess)[-k]
    above = truth[guess > cut]
    tied = np.sort(truth[guess == cut])
    places = k - above.size
    # P(the best of `places` drawn from the tied is the i-th smallest), from the largest downwards.
    rank = np.arange(tied.size - 1, 0, -1)
    steps = np.maximum(rank - places + 1, 0) / rank
    chance = places / tied.size * np.concatenate(([1.0], np.cumprod(steps)))
    best = np.maximum(tied[::-1], above.max(initial=-math.inf))
    return max(0.0, float(chance @ (truth.max() - best)))


def top_share_recovery(predicted: ArrayLike, actual: ArrayLike, share: float) -> float:
    """Part of the truly best share that is in the best predicted share; 0 to 1 (all of it).

    Larger is better in both. Where a tie leaves open what belongs to a share, it is the mean over
    every choice; a constant prediction recovers what chance would.
    """
    guess, truth = _paired(predicted, actual)
    if not 0.0 < share <= 1.0 or guess.size == 0:
        raise ValueError("top_share_recovery needs a share up to 1 and at least one candidate")
    k = math.ceil(share * guess.size)
    return float(_chance_in_top(guess, k) @ _chance_in_top(truth, k)) / k


def risk_coverage(confidences: ArrayLike, losses: ArrayLike) -> RiskCoverage:
    """Mean loss of the most confident forecasts, for every number of them kept.

    Forecasts of equal confidence each count with their group's mean loss, so that the order of the
    input does not matter.
    """
    claimed, loss = _paired(confidences, losses)
    _, group, size = np.unique(-claimed, return_inverse=True, return_counts=True)
    group_mean = np.bincount(group, weights=loss) / size
    kept = np.arange(1, loss.size + 1)
    return RiskCoverage(
        coverage=kept / max(loss.size, 1), risk=np.cumsum(np.repeat(group_mean, size)) / kept
    )


def aurc(confidences: ArrayLike, losses: ArrayLike) -> float:
    """Area under the risk-coverage curve, in units of the loss: lower is better, from 0 up.

    A constant confidence scores the mean loss.
    """
    risk = risk_coverage(confidences, losses).risk
    return float(risk.mean()) if risk.size else math.nan


def auroc(scores: ArrayLike, labels: ArrayLike) -> float:
    """P(a positive scores above a negative), ties as half; 0 to 1 (best), nan for one class."""
    from scipy.stats import rankdata  # takes a second to import

    score, label = _paired(scores, labels)
    positive = label > 0.0
    positives = int(positive.sum())
    negatives = score.size - positives
    if positives == 0 or negatives == 0:
        return math.nan
    rank_sum = float(rankdata(score)[positive].sum())
    return (rank_sum - positives * (positives + 1) / 2.0) / (positives * negatives)


def judge(
    forecast: Forecast | None, measurement: Measurement, *, blind: bool, bins: Bins = DEFAULT_BINS
) -> CalibrationRecord | None:
    """Score the forecast that a decision was based on against the measurement.

    An objection was right if the kernel failed, or beats the anchor by no more than noise. Of a
    kernel that beats it by more than 1% while the noise is not known, no objection is judged.
    """
    if forecast is None:
        return None
    objected = [stage.forecaster for stage in forecast.stages if stage.objected]
    if measurement.log2_speedup is None:
        right = dict.fromkeys(objected, True)
        return CalibrationRecord(blind=blind, p_ok=forecast.p_ok, ok=False, objections=right)
    outcome = measurement.log2_speedup - forecast.anchor_log2_speedup
    noise_log2 = measurement.noise_log2
    no_gain = outcome <= max(noise_log2 or 0.0, SMALLEST_CLAIM_LOG2)
    if noise_log2 is None and not no_gain:
        objected = []
    probabilities = forecast.distribution.bin_probabilities(bins)
    true_bin = bins.index(2.0**outcome)
    low, high = forecast.distribution.interval(0.8)
    return CalibrationRecord(
        blind=blind,
        p_ok=forecast.p_ok,
        ok=True,
        crps=crps(forecast.distribution, outcome),
        half_brier=half_brier(probabilities, true_bin),
        confidence=max(probabilities),
        bin_correct=likeliest_bin(probabilities) == true_bin,
        inside_80=low <= outcome <= high,
        stage_crps={
            stage.forecaster: crps(stage.distribution, outcome) for stage in forecast.stages
        },
        objections=dict.fromkeys(objected, no_gain),
    )


def _probabilities(probabilities: ArrayLike, outcome: int = 0) -> Floats:
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 1 or p.size < 2 or not np.all(p >= 0.0) or not abs(p.sum() - 1.0) < 1e-6:
        raise ValueError("give at least two probabilities that sum to 1; renormalise them first")
    if not 0 <= outcome < p.size:
        raise ValueError(f"outcome {outcome} is not one of {p.size} bins")
    return p


def _paired(a: ArrayLike, b: ArrayLike) -> tuple[Floats, Floats]:
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.ndim != 1 or first.shape != second.shape:
        raise ValueError(f"give two lists of one length, not {first.shape} and {second.shape}")
    if not np.all(np.isfinite(first)) or not np.all(np.isfinite(second)):
        raise ValueError("every entry must be finite: drop or replace those that are not")
    return first, second


def _chance_in_top(values: Floats, k: int) -> Floats:
    """Probability of each value to be one of the k largest, ties broken at random."""
    cut = np.sort(values)[-k]
    above, tied = values > cut, values == cut
    return np.asarray(above + tied * (k - above.sum()) / tied.sum(), dtype=np.float64)


def _integral_of_square(x: Floats, line: Floats) -> float:
    """Integral of the square of the piecewise-linear function through these points."""
    a, b = line[:-1], line[1:]
    return float((x[1:] - x[:-1]) @ (a * a + a * b + b * b)) / 3.0
