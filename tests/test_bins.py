import math
import re

import numpy as np
import pytest
from pydantic import ValidationError

from kernelcast.bins import DEFAULT_BINS, PAPER_BINS, Bins

UGLY_BINS = Bins(name="ugly", edges=(1 / 3, 0.1 + 0.2 + 0.1, 1e5 / 7), labels=("a", "b", "c", "d"))
every_bins = pytest.mark.parametrize(
    "bins", [PAPER_BINS, DEFAULT_BINS, UGLY_BINS], ids=lambda bins: bins.name
)


def bounds(printed: str) -> tuple[float, float]:
    """Read back the bounds of a printed range, from its digits alone."""
    if match := re.fullmatch(r"(\S+)x to under (\S+)x", printed):
        return float(match[1]), float(match[2])
    if match := re.fullmatch(r"under (\S+)x", printed):
        return 0.0, float(match[1])
    match = re.fullmatch(r"(\S+)x or more", printed)
    assert match
    return float(match[1]), math.inf


def speedups_to_try(bins: Bins) -> list[float]:
    rng = np.random.default_rng(0)
    edges = np.array(bins.edges)
    return [
        *np.exp2(rng.uniform(-6.0, 6.0, 10_000)).tolist(),
        *edges.tolist(),
        *np.nextafter(edges, 0.0).tolist(),
        *np.nextafter(edges, np.inf).tolist(),
    ]


@every_bins
def test_printed_range_of_the_label_and_of_no_other_bin_holds_the_speedup(bins: Bins) -> None:
    printed = [bounds(bins.range_text(i)) for i in range(bins.count)]
    for speedup in speedups_to_try(bins):
        holding = [i for i, (low, high) in enumerate(printed) if low <= speedup < high]
        assert holding == [bins.index(speedup)]


@every_bins
def test_table_prints_every_bin_with_the_range_that_parses_back_exactly(bins: Bins) -> None:
    lines = bins.table().splitlines()
    assert len(lines) == bins.count == len(bins.edges) + 1
    for i, line in enumerate(lines):
        head, _, printed = line.partition(": ")
        assert head == f"bin {i} ({bins.labels[i]})"
        assert bounds(printed) == ((0.0, *bins.edges)[i], (*bins.edges, math.inf)[i])


@every_bins
def test_indices_agree_with_index_and_keep_the_shape(bins: Bins) -> None:
    speedups = np.array(speedups_to_try(bins)[-24:]).reshape(-1, 3)
    indices = bins.indices(speedups)
    assert indices.shape == speedups.shape
    assert indices.ravel().tolist() == [bins.index(s) for s in speedups.ravel()]


def test_default_bins_are_readable_and_hold_a_tie_band() -> None:
    assert DEFAULT_BINS.count == 9
    assert DEFAULT_BINS.range_text(3) == "0.71x to under 0.97x"
    assert DEFAULT_BINS.range_text(0) == "under 0.25x"
    assert DEFAULT_BINS.range_text(8) == "4x or more"
    for speedup in (0.97, 1.0, 1.0299):
        assert "tie" in DEFAULT_BINS.labels[DEFAULT_BINS.index(speedup)]
    for speedup in (0.9699, 1.03):
        assert "tie" not in DEFAULT_BINS.labels[DEFAULT_BINS.index(speedup)]


def test_paper_bins_are_the_half_powers_of_two() -> None:
    assert PAPER_BINS.count == 8
    assert PAPER_BINS.log2_edges == pytest.approx((-2, -1, -0.5, 0, 0.5, 1, 2), abs=1e-15)


def test_labelling_by_the_papers_formula_would_contradict_its_printed_table() -> None:
    """Why labels come from `Bins.index`.

    The paper numbers its bins 1 to 8. Its prompt prints the ranges of `PAPER_BINS`, but its labels
    come from a formula, which puts 1.2x into bin 4, printed as 0.71x to 1x.
    """

    def formula_number(speedup: float) -> int:
        return min(max(math.floor(2.0 * math.log2(speedup)) + 4, 1), 8)

    low, high = bounds(PAPER_BINS.range_text(formula_number(1.2) - 1))
    assert low == pytest.approx(0.71, abs=0.005)
    assert high == 1.0
    assert not low <= 1.2 < high

    for speedup in np.exp2(np.linspace(-3.95, 3.95, 80)):
        off_by_one = 0.25 <= speedup < 2.0**1.5
        assert PAPER_BINS.index(speedup) - (formula_number(speedup) - 1) == off_by_one


@pytest.mark.parametrize("speedup", [0.0, -1.0, math.nan, math.inf])
def test_a_number_that_is_no_speedup_has_no_bin(speedup: float) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        DEFAULT_BINS.index(speedup)


@pytest.mark.parametrize("index", [-1, 9])
def test_a_bin_that_does_not_exist_is_refused(index: int) -> None:
    with pytest.raises(IndexError, match="from 0 to 8"):
        DEFAULT_BINS.range_text(index)


@pytest.mark.parametrize(
    ("edges", "labels"),
    [
        ((), ("a",)),
        ((0.0, 1.0), ("a", "b", "c")),
        ((1.0, 1.0), ("a", "b", "c")),
        ((2.0, 1.0), ("a", "b", "c")),
        ((1.0, math.inf), ("a", "b", "c")),
        ((1.0, 2.0), ("a", "b")),
        ((1.0, 2.0), ("a", "b", "a")),
    ],
)
def test_inconsistent_bins_are_refused(edges: tuple[float, ...], labels: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError):
        Bins(name="wrong", edges=edges, labels=labels)


def test_bins_are_frozen_and_survive_json_exactly() -> None:
    assert Bins.model_validate_json(UGLY_BINS.model_dump_json()) == UGLY_BINS
    with pytest.raises(ValidationError):
        DEFAULT_BINS.name = "other"  # type: ignore[misc]
