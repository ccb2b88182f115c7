from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from kernelcast.distribution import Distribution
from kernelcast.forecasters._features import Terms
from kernelcast.forecasters._second_opinion import SecondOpinion
from kernelcast.forecasters._text_process import FEWEST
from kernelcast.scoring import crps

NO_TEXT = Terms.of(())
WIDTHS = (1, 2, 4, 8, 16)
Forecast = Callable[[float], Distribution]


def kernel(width: int) -> Terms:
    return Terms.of(("for", "(", ")", f"#define M1 {width}"))


def right(value: float) -> Distribution:
    return Distribution.normal(value, 0.05)


def wrong(value: float) -> Distribution:
    del value
    return Distribution.normal(-3.0, 0.5)


def scores(first: Forecast, values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """The mean CRPS of the first opinion and of the blend, over the second half of a run."""
    opinion, scored = SecondOpinion(), []
    widths = np.random.default_rng(seed).choice(WIDTHS, len(values)).tolist()
    for width, value in zip(widths, values, strict=True):
        foreseen = first(value)
        (blend,) = opinion.blended([kernel(width)], [foreseen])
        scored.append((crps(foreseen, value), crps(blend, value)))
        opinion.learn(kernel(width), value, foreseen)
    alone, blended = np.mean(scored[len(scored) // 2 :], axis=0).tolist()
    return alone, blended


def of_widths(count: int, seed: int = 0) -> list[float]:
    """Speeds that follow from the texts of `scores`."""
    return [math.log2(width) for width in np.random.default_rng(seed).choice(WIDTHS, count)]


def test_texts_that_tell_the_speed_are_believed_before_trees_that_are_wrong() -> None:
    alone, blended = scores(wrong, of_widths(40))
    assert blended < 0.1 * alone


def test_trees_that_are_right_are_believed_before_texts_that_tell_nothing() -> None:
    values = np.random.default_rng(1).normal(size=60).tolist()
    alone, blended = scores(right, values)
    assert blended < 2.0 * alone < 0.1


def test_a_scale_does_not_matter() -> None:
    """Runs in which all kernels are alike are as good a lesson as those with large gains."""
    small = [0.01 * value for value in of_widths(40)]
    alone, blended = scores(lambda _: Distribution.normal(-0.03, 0.005), small)
    assert blended < 0.6 * alone


def test_an_outlier_is_no_better_a_judge_than_another_measurement() -> None:
    values = np.random.default_rng(2).normal(scale=0.01, size=30).tolist()
    values[14] = 3.0
    alone, blended = scores(lambda _: Distribution.normal(0.0, 0.01), values)
    assert blended < 1.5 * alone


def test_before_a_few_are_measured_there_is_one_opinion() -> None:
    opinion = SecondOpinion()
    for width in WIDTHS[: FEWEST - 1]:
        opinion.learn(kernel(width), 0.0)
    forecast = Distribution.normal(1.0, 0.2)
    assert opinion.blended([kernel(16)], [forecast]) == [forecast]
    opinion.learn(kernel(8), 0.0)
    assert opinion.blended([kernel(16)], [forecast]) != [forecast]


def test_of_a_kernel_without_a_text_nothing_is_learnt_and_nothing_said() -> None:
    opinion = SecondOpinion()
    for _ in range(FEWEST):
        opinion.learn(NO_TEXT, 0.0)
    forecast = Distribution.normal(1.0, 0.2)
    assert opinion.blended([kernel(1), NO_TEXT], [forecast] * 2) == [forecast] * 2
    for width in WIDTHS:
        opinion.learn(kernel(width), 0.0)
    known, unknown = opinion.blended([kernel(1), NO_TEXT], [forecast] * 2)
    assert unknown == forecast
    assert known.quantile(0.5) == pytest.approx(forecast.quantile(0.5), abs=1.0)
    assert known != forecast
