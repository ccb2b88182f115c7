"""Scores of forecasts: how good, how calibrated, how well they rank, how well they know themselves.

Belongs here: pure functions from forecasts and outcomes to numbers, on numpy alone. What a forecast
is lives in `distribution.py`. Where a figure is undefined (an empty input, a constant ranking) it
is nan, so that a table of results can still be printed.
"""

import math
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
    """`risk[i]` is the mean loss of the most confident share `coverage[i]` of all forecasts."""

    coverage: Floats
    risk: Floats


def half_brier(probabilities: ArrayLike, outcome: int) -> float:
    """Half the squared distance to what happened; 0 (sure and right) to 1 (sure and wrong)."""
    p = _probabilities(probabilities, outcome)
    return float(p @ p + 1.0 - 2.0 * p[outcome]) / 2.0


def ordinal_crps(probabilities: ArrayLike, outcome: int) -> float:
    """Ranked probability score over ordered bins, by `count - 1`; 0 (best) to 1.

    Unlike the Brier score it forgives a near miss: it is the mean over the inner edges of the
    squared error of the probability to lie below that edge.
    """
    p = _probabilities(probabilities, outcome)
    below = np.cumsum(p)[:-1]
    happened = np.arange(p.size - 1) >= outcome
    return float(np.mean((below - happened) ** 2))


def bin_log_score(probabilities: ArrayLike, outcome: int, *, floor: float = 0.0) -> float:
    """Negative natural log of the probability of what happened; 0 (best) to infinity.

    A `floor` on the probability keeps means finite, at the price of being not quite proper.
    """
    return _negative_log(float(_probabilities(probabilities, outcome)[outcome]), floor)


def log_score(distribution: Distribution, log2_speedup: float, *, floor: float = 0.0) -> float:
    """Negative natural log of the density at what happened; lower is better, and may be negative.

    It is infinite where the density is 0, unless a `floor` on the density keeps it finite, at the
    price of being not quite proper.
    """
    return _negative_log(distribution.density(log2_speedup), floor)


def crps(distribution: Distribution, log2_speedup: float) -> float:
    """Continuous ranked probability score, exactly; 0 (best) to infinity, in log2 speedup.

    For a forecast with all mass on one point it is the absolute error.
    """
    knots = np.array(distribution.knots)
    at = np.array([log2_speedup])
    before = np.concatenate((knots[knots < log2_speedup], at))
    after = np.concatenate((at, knots[knots > log2_speedup]))
    return _integral_of_square(before, distribution.cdf(before)) + _integral_of_square(
        after, 1.0 - distribution.cdf(after)
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
    first, second = _paired(a, b)
    if first.size == 0:
        return math.nan
    x, y = _average_ranks(first), _average_ranks(second)
    x, y = x - x.mean(), y - y.mean()
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return min(1.0, max(-1.0, float(x @ y) / scale)) if scale > 0.0 else math.nan


def top_k_regret(predicted: ArrayLike, actual: ArrayLike, k: int) -> float:
    """What measuring only the `k` best predicted costs; 0 (best) upwards, in log2 speedup.

    `actual` holds log2 speedups; the regret is the best of all less the best of those k. Where a
    tie in `predicted` leaves open which k, it is the mean over every choice.
    """
    guess, truth = _paired(predicted, actual)
    if k < 1 or guess.size == 0:
        raise ValueError("top_k_regret needs k of at least 1 and at least one candidate")
    k = min(k, guess.size)
    cut = np.sort(guess)[-k]
    surely_in = truth[guess > cut]
    tied = np.sort(truth[guess == cut])
    places = k - surely_in.size
    # P(the best of `places` drawn from the tied is the i-th smallest), from the largest downwards.
    rank = np.arange(tied.size - 1, 0, -1)
    steps = np.maximum(rank - places + 1, 0) / rank
    chance = places / tied.size * np.concatenate(([1.0], np.cumprod(steps)))
    found = np.maximum(tied[::-1], surely_in.max(initial=-math.inf))
    return max(0.0, float(chance @ (truth.max() - found)))


def top_share_recovery(predicted: ArrayLike, actual: ArrayLike, share: float) -> float:
    """How much of the truly best share is among the best predicted share; 0 to 1 (all of it).

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
    """Area under the risk-coverage curve: lower is better, in units of the loss, from 0 up.

    A confidence that says nothing scores the mean loss.
    """
    risk = risk_coverage(confidences, losses).risk
    return float(risk.mean()) if risk.size else math.nan


def auroc(scores: ArrayLike, labels: ArrayLike) -> float:
    """P(a positive scores above a negative), ties as half; 0 to 1 (best), nan for one class."""
    score, label = _paired(scores, labels)
    positive = label > 0.0
    positives = int(positive.sum())
    negatives = score.size - positives
    if positives == 0 or negatives == 0:
        return math.nan
    rank_sum = float(_average_ranks(score)[positive].sum())
    return (rank_sum - positives * (positives + 1) / 2.0) / (positives * negatives)


def judge(
    forecast: Forecast | None, measurement: Measurement, *, blind: bool, bins: Bins = DEFAULT_BINS
) -> CalibrationRecord | None:
    """Hold the forecast on which a decision was made against what came of it, by every score.

    An objection was right if the kernel failed or is not faster than the anchor by more than noise,
    so no new best either.
    """
    if forecast is None:
        return None
    objected = [stage.forecaster for stage in forecast.stages if stage.objected]
    if measurement.log2_speedup is None:
        right = dict.fromkeys(objected, True)
        return CalibrationRecord(blind=blind, p_ok=forecast.p_ok, ok=False, objections=right)
    outcome = measurement.log2_speedup - forecast.anchor_log2_speedup
    no_gain = outcome <= max(measurement.noise_log2, SMALLEST_CLAIM_LOG2)
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
        bin_correct=probabilities.index(max(probabilities)) == true_bin,
        inside_80=low <= outcome <= high,
        stage_crps={
            stage.forecaster: crps(stage.distribution, outcome) for stage in forecast.stages
        },
        objections=dict.fromkeys(objected, no_gain),
    )


def max_probability(probabilities: ArrayLike) -> float:
    """Confidence as the largest probability; 1 / count to 1 (sure)."""
    return float(_probabilities(probabilities).max())


def one_minus_entropy(probabilities: ArrayLike) -> float:
    """Confidence as one minus the entropy over that of the uniform; 0 (uniform) to 1 (sure)."""
    p = _probabilities(probabilities)
    nonzero = p[p > 0.0]
    entropy = -float(nonzero @ np.log(nonzero))
    return min(1.0, max(0.0, 1.0 - entropy / math.log(p.size)))


def top_two_margin(probabilities: ArrayLike) -> float:
    """Confidence as the lead of the largest probability over the next; 0 (tied) to 1 (sure)."""
    second, first = np.sort(_probabilities(probabilities))[-2:]
    return float(first - second)


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
        raise ValueError("every entry must be finite; leave out, or give a number to, what is not")
    return first, second


def _chance_in_top(values: Floats, k: int) -> Floats:
    """The probability of each to be one of the k largest, ties broken at random."""
    cut = np.sort(values)[-k]
    above, tied = values > cut, values == cut
    return np.asarray(above + tied * (k - above.sum()) / tied.sum(), dtype=np.float64)


def _average_ranks(values: Floats) -> Floats:
    _, group, size = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(size) - (size - 1) / 2.0)[group], dtype=np.float64)


def _negative_log(likelihood: float, floor: float) -> float:
    likelihood = max(likelihood, floor)
    return -math.log(likelihood) if likelihood > 0.0 else math.inf


def _integral_of_square(x: Floats, line: Floats) -> float:
    """The integral of the square of a piecewise-linear function through these points."""
    a, b = line[:-1], line[1:]
    return float(np.diff(x) @ (a * a + a * b + b * b)) / 3.0
