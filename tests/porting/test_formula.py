"""Formulas are found for what was seen, and hold for what was not."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.expression import evaluate
from kernelcast.porting.formula import (
    added,
    find_formula,
    find_product,
    influences,
    multiplied,
)

NAMES = ("height", "width", "kernel", "stride", "padding", "channels")


def samples_of(names: Sequence[str], seed: int) -> list[dict[str, int]]:
    """A base, samples with one dimension changed, and some with all changed."""
    rng = random.Random(seed)
    large = ("height", "width", "channels")
    base = {name: rng.randint(12, 40) if name in large else rng.randint(2, 4) for name in names}
    samples = [base]
    for name in names:
        samples += [{**base, name: base[name] + 1}, {**base, name: 2 * base[name]}]
    for _ in range(4):
        samples.append({name: value + rng.randint(1, value) for name, value in base.items()})
    return samples


def found(formula: str, samples: Sequence[Mapping[str, int]]) -> str | None:
    return find_formula([int(evaluate(formula, sample)) for sample in samples], samples)


@pytest.mark.parametrize(
    "formula",
    [
        "7",
        "height",
        "3 * height",
        "height // 4",
        "height + 5",
        "height - 2",
        "3 * width + 1",
        "height * width",
        "height * width * channels",
        "2 * height * width",
        "channels // kernel",
        "height * width // kernel",
        "height + width",
        "height + width + channels",
        "(height + width) * channels",
        "(height + 127) // 128",
        "height - kernel + 1",
        "(height - kernel) // stride + 1",
        "(height + 2 * padding - kernel) // stride + 1",
        "(height + 2 * padding - 2 * (kernel - 1) - 1) // stride + 1",
        "(height - 1) * stride - 2 * padding + kernel",
        "(height - 1) * 2 + kernel + padding",
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_usual_extents_are_found_and_hold_for_other_sizes(formula: str, seed: int) -> None:
    answer = found(formula, samples_of(NAMES, seed))
    assert answer is not None
    for other in samples_of(NAMES, seed + 100):
        assert evaluate(answer, other) == evaluate(formula, other), answer


@given(
    factors=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3),
    times=st.integers(1, 12),
    plus=st.integers(-3, 12),
    seed=st.integers(0, 99),
)
def test_a_product_with_two_constants_is_found(
    factors: list[str], times: int, plus: int, seed: int
) -> None:
    formula = f"{times} * {' * '.join(factors)} + {plus}"
    answer = found(formula, samples_of(NAMES, seed))
    assert answer is not None
    for other in samples_of(NAMES, seed + 100):
        assert evaluate(answer, other) == evaluate(formula, other)


@settings(max_examples=25)  # to look through all formulas takes long
@given(
    st.lists(st.integers(-100, 1 << 65), min_size=13, max_size=13),
    st.integers(0, 99),
)
def test_whatever_is_found_gives_every_number(numbers: list[int], seed: int) -> None:
    samples = samples_of(NAMES[:4], seed)
    answer = find_formula(numbers[: len(samples)], samples)
    if answer is not None:
        assert [evaluate(answer, sample) for sample in samples] == numbers[: len(samples)]


def test_what_has_no_formula_has_none() -> None:
    samples = samples_of(("height", "width"), 1)
    assert find_formula([3, 1, 4, 1, 5, 9, 2, 6, 5][: len(samples)], samples) is None


def test_influences_are_seen_where_nothing_else_changes() -> None:
    samples = samples_of(("height", "width"), 1)
    assert influences([sample["width"] for sample in samples], samples) == {"width"}
    assert influences([1, 2], [{"a": 1, "b": 1}, {"a": 2, "b": 2}]) == set()


def test_a_product_is_made_of_known_factors() -> None:
    factors = {"rows": [3, 5, 7], "rows + columns": [10, 16, 20]}
    wanted = [2 * 3 * 3 * 10, 2 * 5 * 5 * 16, 2 * 7 * 7 * 20]
    assert find_product(wanted, factors) == "2 * rows * rows * (rows + columns)"
    assert find_product([1, 2, 4], factors) is None


def test_sums_and_products_are_written_shortly() -> None:
    assert multiplied(["4", "2 * a", "b + c"]) == "8 * a * (b + c)"
    assert multiplied(["1", "a"]) == "a"
    assert multiplied(["1"]) == "1"
    assert multiplied(["3", "a // 2"]) == "3 * (a // 2)"
    assert added(["4 * a * b", "2 * b * a", "c"]) == "6 * a * b + c"
    assert added([]) == "0"


@given(
    st.lists(
        st.sampled_from(["2", "a", "b", "a + b", "3 * a", "b // 2", "2 * (a - 1)", "(a + b) * a"]),
        min_size=1,
        max_size=5,
    )
)
def test_written_shortly_they_mean_the_same(parts: list[str]) -> None:
    names = {"a": 7, "b": 11}
    product = total = 0
    product = 1
    for part in parts:
        product *= evaluate(part, names)
        total += evaluate(part, names)
    assert evaluate(multiplied(parts), names) == product
    assert evaluate(added(parts), names) == total
