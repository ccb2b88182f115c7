from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.errors import ProblemError
from kernelcast.expression import MOST_BITS, MOST_CHARACTERS, MOST_NESTING, MOST_WORDS, evaluate

NAMES = {"N": 48, "K": 7, "half": 0.5, "zero": 0}


def arithmetic() -> st.SearchStrategy[str]:
    leaves = st.one_of(
        st.integers(0, 1_000).map(str),
        st.floats(0.0, 100.0).map(lambda value: str(round(value, 3))),
        st.sampled_from(sorted(NAMES)),
    )

    def combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        operators = st.sampled_from(["+", "-", "*", "/", "//", "%"])
        return st.one_of(
            st.tuples(inner, operators, inner).map(" ".join),
            inner.map(lambda text: f"({text})"),
            inner.map(lambda text: f"-{text}"),
        )

    return st.recursive(leaves, combine, max_leaves=10)


def conditions() -> st.SearchStrategy[str]:
    comparisons = st.lists(arithmetic(), min_size=2, max_size=4).flatmap(
        lambda terms: st.lists(
            st.sampled_from(["==", "!=", "<", "<=", ">", ">="]),
            min_size=len(terms) - 1,
            max_size=len(terms) - 1,
        ).map(
            lambda signs: (
                terms[0]
                + "".join(f" {sign} {term}" for sign, term in zip(signs, terms[1:], strict=True))
            )
        )
    )

    def combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        joined = st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join)
        return st.one_of(joined, inner.map(lambda text: f"not ({text})"))

    return st.recursive(comparisons, combine, max_leaves=4)


def python_says(text: str) -> float | bool | None:
    try:
        value: float | bool = eval(text, {}, dict(NAMES))
    except ArithmeticError:
        return None
    return value


@settings(max_examples=150, deadline=None)
@given(arithmetic())
def test_agrees_with_python(text: str) -> None:
    expected = python_says(text)
    if expected is None:
        with pytest.raises(ProblemError, match="cannot work out"):
            evaluate(text, NAMES)
    else:
        value = evaluate(text, NAMES)
        assert type(value) is type(expected)
        assert value == expected or (math.isnan(value) and math.isnan(expected))


@settings(max_examples=60, deadline=None)
@given(conditions())
def test_conditions_agree_with_python(text: str) -> None:
    # A comparison in Python stops at the first that fails; here each side must be a number.
    try:
        value = evaluate(text, NAMES)
    except ProblemError:
        return
    assert value is python_says(text)


def test_text_can_be_compared() -> None:
    assert evaluate("LAYOUT == 'rows' and A >= 2", {"LAYOUT": "rows", "A": 2}) is True


@pytest.mark.parametrize(
    "text",
    [
        "print(1)",
        "N.real",
        "(lambda: 1)()",
        "lambda: 1",
        "[1, 2]",
        "N[0]",
        "{1: 2}",
        "N if K else 1",
        "[N for N in K]",
        "2 ** 1000000",
        "1 << 100",
        "~N",
        "f'{N}'",
        "b'bytes'",
        "None",
        "...",
        "(x := 1)",
        "N in K",
        "N is K",
        "await N",
        "1j",
        "__import__('os')",
        "N.__class__",
    ],
)
def test_refuses_all_that_is_not_arithmetic(text: str) -> None:
    with pytest.raises(ProblemError):
        evaluate(text, NAMES)


@pytest.mark.parametrize("text", ["", "N +", "N; K", "x = 1", "import os", "(" * 500, "N\0"])
def test_what_cannot_be_read_is_said_so(text: str) -> None:
    with pytest.raises(ProblemError, match="cannot read"):
        evaluate(text, NAMES)


def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    with pytest.raises(ProblemError, match="unknown name 'M'; known: K, N"):
        evaluate("M + 1", {"N": 1, "K": 2})


def test_what_does_not_go_together_is_told_with_the_values() -> None:
    with pytest.raises(ProblemError, match=r"'N // zero' for N=48, zero=0"):
        evaluate("N // zero", {"N": 48, "zero": 0})
    with pytest.raises(ProblemError, match="cannot work out"):
        evaluate("LAYOUT - 1", {"LAYOUT": "rows"})


# ------------------------------------------------------------------------- text that is not trusted

HOSTILE: dict[str, float | int | str] = {
    "N": 48,
    "name": "text",
    "large": 2**127,
    "larger": 2**4000,
    "endless": math.inf,
}
WORDS = (
    *("N", "name", "large", "larger", "endless", "'a'", '"%999999999d"', "9" * 60, "1e308", "0xff"),
    *("+", "-", "*", "/", "//", "%", "**", "<<", "==", "<", "(", ")", "and", "or", "not", "if"),
    *("[", "]", "{", ":", "lambda", "f'{1}'", ".", ",", "\\", "\n", "True", "1_0", "007", "10**9"),
)


def is_small(value: object) -> bool:
    if isinstance(value, int):
        return value.bit_length() <= MOST_BITS
    return isinstance(value, str) or (isinstance(value, float) and math.isfinite(value))


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=60).map(" ".join) | st.text(max_size=80))
def test_any_text_has_a_small_value_or_is_refused_in_few_words(text: str) -> None:
    said = ""
    try:
        value = evaluate(text, HOSTILE)
    except ProblemError as error:
        value, said = 0, str(error)
    assert is_small(value)
    assert len(said) < 10 * len(text) + 1_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("'%1999999999d' % 1", "text can only be compared"),
        ("'a' * 10000000000", "text can only be compared"),
        ("name + 'a'", "text can only be compared"),
        ("-name", "text can only be compared"),
        ("large * 4", "more than 128 bits"),
        ("larger", "more than 128 bits"),
        ("larger // larger", "larger=too large"),
        ("9" * 1_000, "more than 128 bits"),
        ("0x" + "f" * 1_000, "more than 128 bits"),
        ("1e999", "not finite"),
        ("1e308 * 10", "not finite"),
        ("endless", "not finite"),
        ("N // 0", "zero"),
        ("N % 0", "zero"),
        ("1" + "+1" * MOST_WORDS, "more than 500 words"),
        ("N" + " " * MOST_CHARACTERS, "more than 2000 characters"),
        ("(" * 40 + "N" + ")" * 40, "more than 30 parentheses"),
        ("007", "cannot read"),
        ("1__0", "cannot read"),
    ],
)
def test_what_is_too_large_is_refused(text: str, words: str) -> None:
    with pytest.raises(ProblemError, match=words) as told:
        evaluate(text, HOSTILE)
    assert len(str(told.value)) < 3 * MOST_CHARACTERS


def test_what_is_as_large_as_allowed_has_a_value() -> None:
    assert evaluate("+".join(["N"] * (MOST_WORDS // 2)), HOSTILE) == 48 * MOST_WORDS // 2
    assert evaluate("(" * MOST_NESTING + "N" + ")" * MOST_NESTING, HOSTILE) == 48
    assert evaluate("- " * 401 + "N", HOSTILE) == -48
    assert evaluate("not " * 401 + "N", HOSTILE) is False
    assert evaluate("large + (large - 1)", HOSTILE) == 2**128 - 1
    assert evaluate("name == 'text'", HOSTILE) is True
