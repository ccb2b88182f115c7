"""New rows are folded in only where they help on problems that neither side has seen."""

from __future__ import annotations

import pytest

from kernelcast.dataset import Row, Rows, to_table
from kernelcast.errors import SetupError
from kernelcast.training.refresh import refresh

from .conftest import search_rows


def _backwards(rows: list[Row]) -> list[Row]:
    """Searches in which what was fast is slow."""
    return [
        row.model_copy(
            update={
                "log2_speedup": None if row.log2_speedup is None else -row.log2_speedup,
                "runtime_s": row.runtime_s and 1e-3 * 2.0 ** (row.log2_speedup or 0.0),
            }
        )
        for row in rows
    ]


@pytest.fixture(scope="module")
def old() -> Rows:
    return to_table(search_rows(18, 10, source="old"))


def test_rows_that_tell_something_new_are_learnt(old: Rows) -> None:
    new = to_table(_backwards(search_rows(18, 10, source="new", seed=1)))
    result = refresh(old, new)
    assert result.is_better
    assert result.model is not None
    assert result.before.kernels == result.after.kernels == result.before.kernels
    assert "new" in result.model.header.trained_on


def test_both_sides_are_judged_on_the_same_rows_and_the_old_model_may_stay(old: Rows) -> None:
    few = [row for row in search_rows(4, 3, source="new", seed=2) if row.step]
    spoilt = [
        row.model_copy(update={"log2_speedup": 3.0, "runtime_s": 1e-3 / 8, "status": "ok"})
        for row in few
        if row.problem.endswith("0")
    ]
    new = to_table([row for row in few if not row.problem.endswith("0")] + spoilt)
    result = refresh(old, new)
    assert result.before.kernels == result.after.kernels > 0
    assert (result.model is not None) is result.is_better


def test_one_problem_is_too_few(old: Rows) -> None:
    with pytest.raises(SetupError, match="at least two"):
        refresh(old, to_table(search_rows(1, 5, source="new")))
