"""What measured kernels teach: about a writer, a run, and signs that tell outcomes apart."""

from __future__ import annotations

import numpy as np
import pytest

from kernelcast.forecasters._experience import (
    FASTER,
    SIGNS_OF_FAILURE,
    SIGNS_OF_OUTCOME,
    SLOWER,
    TIE,
    Experience,
    Signs,
)

COLUMNS = tuple(dict.fromkeys((*SIGNS_OF_FAILURE, *SIGNS_OF_OUTCOME)))
SHARES = np.array([0.2, 0.5, 0.3])
NO_SCORE, NO_SCORES = np.zeros(1), np.zeros((1, 2))
EVEN = np.full(2, 0.5)


def experience() -> Experience:
    def signs(names: tuple[str, ...], outcomes: int) -> Signs:
        zeros = (0.0,) * len(names)
        weights = ((0.0,) * (1 + outcomes + len(names)),) * outcomes
        return Signs(columns=names, centres=zeros, scales=(1.0,) * len(names), weights=weights)

    return Experience(
        COLUMNS, signs(SIGNS_OF_FAILURE, 1), (0.0, 1.5), signs(SIGNS_OF_OUTCOME, 2), SHARES
    )


def row(**signs: float) -> np.ndarray:
    values = np.full((1, len(COLUMNS)), np.nan)
    for name, value in signs.items():
        values[0, COLUMNS.index(name)] = value
    return values


def test_nothing_measured_is_as_usual() -> None:
    known = experience()
    assert known.p_failure(row(), NO_SCORE, [""], known.new_run()) == pytest.approx(0.5)
    assert known.groups(row(), NO_SCORES)[0] == pytest.approx([1 / 3] * 3)
    assert known.class_shares(0) == pytest.approx(SHARES)


def test_a_writer_is_known_after_five_kernels_and_in_later_runs() -> None:
    known = experience()
    first = known.new_run()
    for _ in range(5):
        known.add_failure(row(), 0.0, "careless", first, failed=True)
    later = known.new_run()
    careless, careful = known.p_failure(
        np.vstack([row(), row()]), np.zeros(2), ["careless", "unknown"], later
    )
    assert careless > 0.75
    assert careful == pytest.approx(0.5)
    assert known.p_failure(row(), NO_SCORE, ["careless"], first) > careless


def test_a_sign_that_tells_failures_apart_is_learnt() -> None:
    known = experience()
    run = known.new_run()
    for number in range(120):
        large = number % 2 == 0
        size = row(tokens=5.0 if large else -5.0)
        known.add_failure(size, 0.0, "", run, failed=large)
    asked = np.vstack([row(tokens=5.0), row(tokens=-5.0)])
    risky, safe = known.p_failure(asked, np.zeros(2), ["", ""], run)
    assert risky > 0.7
    assert safe < 0.3


@pytest.mark.parametrize("group", [SLOWER, TIE, FASTER])
def test_outcomes_of_one_group_make_it_likely(group: int) -> None:
    known = experience()
    for measured in range(12):
        known.add_outcome(row(), NO_SCORES, group, group, measured, EVEN)
    assert known.groups(row(), NO_SCORES)[0].argmax() == group
    assert known.groups(row(), NO_SCORES)[0].sum() == pytest.approx(1.0)
    assert known.class_shares(5)[group] > SHARES[group]


@pytest.mark.parametrize("better", [0, 1])
def test_the_opinion_that_foresaw_the_outcomes_decides(better: int) -> None:
    known = experience()
    opinions = np.array([[[0.1, 0.2, 0.7]], [[0.6, 0.3, 0.1]]])
    assert known.blended(opinions)[0] == pytest.approx([0.2, 0.22, 0.58])
    for measured in range(30):
        foreseen = np.where(np.arange(2) == better, 0.8, 0.3)
        known.add_outcome(row(), NO_SCORES, TIE, TIE, measured, foreseen)
    blended = known.blended(opinions)[0]
    assert blended == pytest.approx(opinions[better, 0], abs=0.01)
    assert blended.sum() == pytest.approx(1.0)
