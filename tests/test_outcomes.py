"""Outcomes: what a prompt names, an answer shares its chance over, and a reward scores."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.bins import DEFAULT_BINS, PAPER_BINS
from kernelcast.outcomes import CAUSES, Outcomes, Shares
from kernelcast.types import FailureKind

OUTCOMES = Outcomes()


def test_every_outcome_has_a_letter_a_name_and_a_meaning() -> None:
    lines = OUTCOMES.table().splitlines()
    assert len(lines) == len(OUTCOMES.keys) == len(OUTCOMES.letters) == OUTCOMES.count == 13
    assert lines[0] == "A: compile error (fails: compile_error)"
    assert lines[8] == "I: tie (right, 0.97x to under 1.03x)"


@pytest.mark.parametrize("bins", [DEFAULT_BINS, PAPER_BINS], ids=lambda bins: bins.name)
@given(log2_speedup=st.floats(-6.0, 6.0))
def test_a_speedup_is_in_the_bin_that_the_prompt_calls_so(
    bins: object, log2_speedup: float
) -> None:
    outcomes = Outcomes(bins)  # type: ignore[arg-type]
    index = outcomes.index(None, log2_speedup)
    assert index == len(CAUSES) + outcomes.bins.index(2.0**log2_speedup)


def test_failures_come_first_and_what_no_forecast_is_about_has_no_number() -> None:
    assert [OUTCOMES.index(cause, None) for cause in CAUSES] == [0, 1, 2, 3]
    assert OUTCOMES.index(FailureKind.CHEATING, None) is None
    assert OUTCOMES.index(None, None) is None


@given(st.lists(st.integers(0, 9), min_size=13, max_size=13).filter(any), st.integers(0, 12))
def test_written_digits_are_read_back(digits: list[int], likeliest: int) -> None:
    scaled = [9 * digit / max(digits) for digit in digits]
    text = OUTCOMES.digits(scaled, likeliest)
    assert len(text) == 14
    expected = [round(value) for value in scaled]
    for written in (text, " ".join(text), f"{text[0]}: {', '.join(text[1:])}\n"):
        shares = OUTCOMES.read_digits(written)
        assert shares is not None
        assert shares.likeliest == likeliest
        assert shares.chances == pytest.approx([value / sum(expected) for value in expected])


@pytest.mark.parametrize(
    "text",
    ["", "E", "E000090000000", "E00009000000000", "Z0000900000000", "E0000000000000", "E 1.5 0 0"],
)
def test_other_texts_are_not_read(text: str) -> None:
    assert OUTCOMES.read_digits(text) is None


def test_points_are_scaled_and_their_sum_is_kept() -> None:
    points = dict.fromkeys(OUTCOMES.keys, 0) | {"tie": 60, "slower": 15}
    shares = OUTCOMES.read_points(points)
    assert shares is not None
    assert shares.likeliest == OUTCOMES.keys.index("tie")
    assert shares.raw_sum == pytest.approx(0.75)
    assert math.fsum(shares.chances) == pytest.approx(1.0)
    assert shares.chances[shares.likeliest] == pytest.approx(0.8)


@pytest.mark.parametrize("broken", [{"tie": 101}, {"tie": -1}, {"tie": True}, {"tie": 10**400}])
def test_invalid_points_are_not_read(broken: dict[str, object]) -> None:
    assert OUTCOMES.read_points(dict.fromkeys(OUTCOMES.keys, 1) | broken) is None
    assert OUTCOMES.read_points(dict.fromkeys(OUTCOMES.keys, 0)) is None
    assert OUTCOMES.read_points({"tie": 1}) is None


def test_weights_become_shares() -> None:
    assert Shares.of([1.0, 3.0], unit=8.0) == Shares(1, (0.25, 0.75), 0.5)
