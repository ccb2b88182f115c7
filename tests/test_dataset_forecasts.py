"""The paper's released forecasts: read as stated, kept whole, joined to the rows they are of."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast import dataset
from kernelcast.errors import SetupError
from tests.test_dataset import TRITON, pair, parquet

TIMED = {"input_tokens": 3000, "output_tokens": 900, "elapsed_s": 12.5}
"""A file needs one row whose token counts are not null."""


def prediction(key: str, bins: dict[int, float] | None, **changes: Any) -> dict[str, Any]:
    """A row of the released file; `bins` count from 1, None could not be parsed."""
    stated = [{"bin": number, "p": chance} for number, chance in (bins or {}).items()]
    return {
        "comparison_id": key,
        "pack": "trimul",
        "surrogate_label": "m",
        "repeat": 0,
        "predicted_bin": max(bins, key=bins.__getitem__) if bins else None,
        "bin_probabilities": stated,
        "reasoning": "because",
        "raw_probability_sum": math.fsum(bins.values()) if bins else None,
        "parse_failed": bins is None,
        "parse_error": None if bins else "no tool call",
        **TIMED,
    } | changes


PAIRS = [
    pair(aggregated_speedup=1.2),
    pair(candidate_code=TRITON.format(2), aggregated_speedup=0.4),
    pair(comparison_id="cmp-2", anchor_code=TRITON.format(7), aggregated_speedup=3.0),
    pair(
        comparison_id="cmp-3",
        anchor_code=TRITON.format(7),
        candidate_code=TRITON.format(3),
        aggregated_speedup=0.9,
    ),
]
"""The first two pairs share their key; the first and the third their candidate."""

PREDICTIONS = [
    prediction("cmp-1", {5: 0.45, 4: 0.3}),  # the sum is 0.75
    prediction("cmp-1", {2: 0.495, 3: 0.605}),  # the sum is 1.1
    prediction("cmp-2", None),
    prediction("cmp-3", {6: 0.58, 5: 0.14, 7: 0.14, 8: 0.14}),
]


def imported(tmp_path: Path, *entries: dict[str, Any]) -> list[dataset.RecordedForecast]:
    return dataset.import_paper_predictions([parquet(tmp_path / "p.parquet", list(entries))])


def test_forecasts_are_normalised_and_their_sums_kept(tmp_path: Path) -> None:
    first, second, unread, last = imported(tmp_path, *PREDICTIONS)
    assert first.probabilities == pytest.approx((0, 0, 0, 0.4, 0.6, 0, 0, 0))
    assert second.probabilities == pytest.approx((0, 0.45, 0.55, 0, 0, 0, 0, 0))
    assert last.probabilities == pytest.approx((0, 0, 0, 0, 0.14, 0.58, 0.14, 0.14))
    sums = [each.raw_probability_sum for each in (first, second, last)]
    assert sums == pytest.approx([0.75, 1.1, 1.0])
    assert (unread.probabilities, unread.raw_probability_sum, unread.unparsed) == (None, None, True)
    assert [each.occurrence for each in (first, second, unread, last)] == [1, 2, 1, 1]
    assert (first.key, first.problem, first.forecaster) == ("eval-set/cmp-1", "trimul", "m")
    assert (first.bins, first.input_tokens, first.seconds) == ("paper", 3000, 12.5)


def test_the_published_sum_counts_where_the_probabilities_are_normalised(tmp_path: Path) -> None:
    (one,) = imported(tmp_path, prediction("a", {4: 1.0}, raw_probability_sum=0.8))
    assert one.raw_probability_sum == 0.8


@pytest.mark.parametrize(
    "stated",
    [
        [{"bin": 1, "p": -0.1}, {"bin": 2, "p": 1.1}],
        [{"bin": 1, "p": math.nan}, {"bin": 2, "p": 1.0}],
        [{"bin": 1, "p": math.inf}],
        [{"bin": 1, "p": None}, {"bin": 2, "p": 1.0}],
        [{"bin": 1, "p": 0.0}, {"bin": 2, "p": 0.0}],
        [{"bin": 1, "p": 0.5}, {"bin": 1, "p": 0.5}],
        [],
        None,
    ],
)
def test_what_is_no_distribution_counts_as_unparsed(tmp_path: Path, stated: Any) -> None:
    good = prediction("a", {4: 1.0})
    _, odd = imported(tmp_path, good, prediction("b", {4: 1.0}, bin_probabilities=stated))
    assert odd.probabilities is None
    assert odd.unparsed


def test_bins_beyond_the_papers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"a has the bins \[0\]; the paper's are 1 to 8"):
        imported(tmp_path, prediction("a", {0: 0.5, 1: 0.5}))
    with pytest.raises(SetupError, match="lacks the columns"):
        dataset.import_paper_predictions([parquet(tmp_path / "e.parquet", PAIRS)])


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.builds(
            dataset.RecordedForecast,
            bins=st.just("paper"),
            occurrence=st.integers(1, 9),
            repeat=st.integers(0, 9),
            probabilities=st.none() | st.just((0.125,) * 8),
            raw_probability_sum=st.none() | st.floats(0.0, 2.0),
            input_tokens=st.none() | st.integers(0, 10**6),
            output_tokens=st.none(),
            seconds=st.none() | st.floats(0.0, 1e4),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_forecasts_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, forecasts: list[dataset.RecordedForecast]
) -> None:
    path = tmp_path_factory.mktemp("written") / "new" / "forecasts.parquet"
    dataset.write_forecasts(path, forecasts)
    assert dataset.read_forecasts(path) == forecasts
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    other = parquet(tmp_path / "other.parquet", PREDICTIONS)
    with pytest.raises(SetupError, match="make them with `kernelcast data import paper-pred"):
        dataset.read_forecasts(other)
    (tmp_path / "text").write_text("no")
    with pytest.raises(SetupError, match="cannot be read as Parquet"):
        dataset.read_forecasts(tmp_path / "text")
    dataset.write_forecasts(tmp_path / "none", [])
    with pytest.raises(SetupError, match="holds no forecast"):
        dataset.read_forecasts(tmp_path / "none")
    (one,) = imported(tmp_path, PREDICTIONS[0])
    mixed = [one, one.model_copy(update={"bins": "default"})]
    dataset.write_forecasts(tmp_path / "mixed", mixed)
    with pytest.raises(SetupError, match=r"names the bins \['default', 'paper'\]"):
        dataset.read_forecasts(tmp_path / "mixed")


def rows(tmp_path: Path, *pairs: dict[str, Any]) -> dataset.Rows:
    return dataset.import_gpu_forecasters(parquet(tmp_path / "e.parquet", list(pairs)))


def test_forecasts_of_a_shared_key_go_to_its_rows_in_order(tmp_path: Path) -> None:
    table = rows(tmp_path, *PAIRS)
    again = [each | {"repeat": 1} for each in reversed(PREDICTIONS)]
    other = [each | {"surrogate_label": "n"} for each in PREDICTIONS]
    found = imported(tmp_path, *PREDICTIONS, *again, *other)
    joined = dataset.forecasts_by_row(reversed(found), table)
    assert sorted(joined) == ["m", "n"]
    assert list(joined["m"]) == table["row_id"].to_pylist()
    by_row = list(joined["m"].values())
    assert [[each.repeat for each in told] for told in by_row] == [[0, 1]] * 4
    assert [told[0] for told in by_row] == found[:4]
    # The order of a key's forecasts counts, not that of the file.
    sums = [[each.raw_probability_sum for each in told] for told in by_row[:2]]
    assert sums == [pytest.approx([0.75, 1.1]), pytest.approx([1.1, 0.75])]


def test_one_key_of_two_problems_is_two_keys(tmp_path: Path) -> None:
    table = rows(tmp_path, pair(pack="a"), pair(pack="b", candidate_code=TRITON.format(2)))
    found = imported(
        tmp_path, prediction("cmp-1", {8: 1.0}, pack="b"), prediction("cmp-1", {1: 1.0}, pack="a")
    )
    (joined,) = dataset.forecasts_by_row(found, table).values()
    assert [told[0].problem for told in joined.values()] == ["a", "b"]


def test_rows_and_forecasts_that_do_not_match_are_named(tmp_path: Path) -> None:
    table = rows(tmp_path, *PAIRS)
    found = imported(tmp_path, *PREDICTIONS)
    stray = found[0].model_copy(update={"key": "eval-set/nowhere"})
    for forecasts, complaint in (
        ([*found, stray], "'eval-set/nowhere' of 'trimul' is the key of 0 rows and of 1 forecasts"),
        (found[:-1], "'eval-set/cmp-3' of 'trimul' is the key of 1 rows and of 0 forecasts by m"),
        (found[1:], "'eval-set/cmp-1' of 'trimul' is the key of 2 rows and of 1 forecasts"),
        ([*found, *found], "'eval-set/cmp-1' of 'trimul' is the key of 2 rows and of 4 forecasts"),
    ):
        with pytest.raises(SetupError, match=complaint):
            dataset.forecasts_by_row(forecasts, table)
