"""Arithmetic in problem files and kernels: shapes, work counts, constraints, launch extents.

Problem folders are data, and kernels are not trusted. Their expressions are read by a parser of
their own and never executed. Every size is bounded, so that no text takes long or much memory: the
text's length, its words, its nesting, and the bits of each number on the way to the result.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, NoReturn

from kernelcast.errors import ProblemError

MOST_CHARACTERS = 2_000
MOST_WORDS = 500
MOST_NESTING = 30
MOST_BITS = 128

_Names = Mapping[str, float | int | str]
_Node = Callable[[_Names], Any]

_WORD = re.compile(
    r"\s*(?:(?P<number>0[xXbBoO]\w+"
    r"|(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][-+]?\d[\d_]*)?)(?!\w)"
    r"|(?P<text>'[^'\\\n]*'|\"[^\"\\\n]*\")"
    r"|(?P<name>[^\W\d]\w*)"
    r"|(?P<sign>//|[<>=!]=|[-+*/%<>()]))"
)
_SUMS = {"+": operator.add, "-": operator.sub}
_PRODUCTS = {
    "*": operator.mul,
    "//": operator.floordiv,
    "/": operator.truediv,
    "%": operator.mod,
}
_COMPARISONS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_KEYWORDS = frozenset({"and", "or", "not"})
_TRUTHS = {"True": True, "False": False}


def evaluate(text: str, names: _Names) -> Any:
    """Evaluate an expression of numbers, names, + - * / // %, comparisons, and/or/not.

    Text can be compared, and nothing else.

    Raises:
        ProblemError: A name is unknown, something is not allowed or not defined, or the expression
            or one of its values is too large.
    """
    try:
        return _parse(text)(names)
    except (ArithmeticError, TypeError) as error:
        used = names_of(text)
        known = ", ".join(f"{name}={_shown(names[name])}" for name in names if name in used)
        raise ProblemError(f"cannot work out {text!r} for {known}: {error}") from error
    except _UnknownName as error:
        known = ", ".join(sorted(names)[:MOST_WORDS])
        raise ProblemError(f"{text!r} uses the unknown name {error}; known: {known}") from error


def names_of(text: str) -> set[str]:
    """The names that a text has; none if it is too long to be an expression."""
    if len(text) > MOST_CHARACTERS:
        return set()
    return set(re.findall(r"[^\W\d]\w*", text))


class _UnknownName(Exception):
    """An expression uses a name that has no value."""


def _bounded(value: Any) -> Any:
    """The value, if it is not too large."""
    if isinstance(value, int):
        if value.bit_length() > MOST_BITS:
            raise OverflowError(f"a number has more than {MOST_BITS} bits")
    elif isinstance(value, float) and not math.isfinite(value):
        raise OverflowError("a number is not finite")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, str):
        raise TypeError("text can only be compared")
    return value


def _shown(value: Any) -> str:
    too_large = isinstance(value, int) and value.bit_length() > MOST_BITS
    return "too large" if too_large else repr(value)[:80]


@lru_cache(maxsize=4096)
def _parse(text: str) -> _Node:
    return _Reader(text).read()


class _Reader:
    """Reads one expression by recursive descent, with Python's precedence.

    A chain of operators is one node, so that only parentheses make a tree deep.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        if len(text) > MOST_CHARACTERS:
            self._text = f"{text[:60]}..."
            self._refuse(f"it has more than {MOST_CHARACTERS} characters")
        self._words: list[tuple[str, str]] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            word = _WORD.match(text, at)
            if word is None or word.lastgroup is None:
                self._refuse(f"{text[at:].split()[0][:20]!r} is not allowed in an expression")
            self._words.append((word.lastgroup, word[word.lastgroup]))
            at = word.end()
        if len(self._words) > MOST_WORDS:
            self._refuse(f"it has more than {MOST_WORDS} words")
        self._at = self._nesting = 0

    def read(self) -> _Node:
        """The whole expression."""
        whole = self._either()
        if self._at < len(self._words):
            self._refuse(f"{self._word!r} is not expected")
        return whole

    def _refuse(self, why: str) -> NoReturn:
        raise ProblemError(f"cannot read the expression {self._text!r}: {why}")

    @property
    def _word(self) -> str:
        """The next sign or name, or nothing."""
        kind, word = self._words[self._at] if self._at < len(self._words) else ("", "")
        return word if kind in ("sign", "name") else ""

    def _took(self, word: str) -> bool:
        found = self._word == word
        self._at += found
        return found

    def _either(self) -> _Node:
        parts = [self._both()]
        while self._took("or"):
            parts.append(self._both())
        return (lambda names: any(part(names) for part in parts)) if parts[1:] else parts[0]

    def _both(self) -> _Node:
        parts = [self._denied()]
        while self._took("and"):
            parts.append(self._denied())
        return (lambda names: all(part(names) for part in parts)) if parts[1:] else parts[0]

    def _denied(self) -> _Node:
        start = self._at
        while self._took("not"):
            pass
        count, part = self._at - start, self._compared()
        if not count:
            return part
        return lambda names: bool(part(names)) is (count % 2 == 0)

    def _compared(self) -> _Node:
        parts, tests = [self._chain(_SUMS)], []
        while test := _COMPARISONS.get(self._word):
            self._at += 1
            tests.append(test)
            parts.append(self._chain(_SUMS))

        def compared(names: _Names) -> bool:
            values = pairwise([part(names) for part in parts])
            return all(test(*pair) for test, pair in zip(tests, values, strict=True))

        return compared if tests else parts[0]

    def _chain(self, operators: Mapping[str, Callable[[Any, Any], Any]]) -> _Node:
        """Sums of products, and products of factors, from left to right."""

        def part() -> _Node:
            return self._chain(_PRODUCTS) if operators is _SUMS else self._factor()

        first, rest = part(), []
        while combine := operators.get(self._word):
            self._at += 1
            rest.append((combine, part()))

        def value(names: _Names) -> Any:
            total = _number(first(names))
            for combine, other in rest:
                total = _bounded(combine(total, _number(other(names))))
            return total

        return value if rest else first

    def _factor(self) -> _Node:
        start = self._at
        while self._took("-"):
            pass
        count, part = self._at - start, self._atom()
        if not count:
            return part
        return lambda names: (-1 if count % 2 else 1) * _number(part(names))

    def _atom(self) -> _Node:
        if self._took("("):
            self._nesting += 1
            if self._nesting > MOST_NESTING:
                self._refuse(f"more than {MOST_NESTING} parentheses are open")
            inner = self._either()
            if not self._took(")"):
                self._refuse("a parenthesis is not closed")
            self._nesting -= 1
            return inner
        kind, word = self._words[self._at] if self._at < len(self._words) else ("end", "its end")
        self._at += 1
        if kind == "name" and word not in (*_KEYWORDS, *_TRUTHS):
            return lambda names: _value_of(word, names)
        constant: Any = _TRUTHS.get(word)
        if kind == "text":
            constant = word[1:-1]
        elif kind == "number":
            constant = self._constant(word)
        elif constant is None:
            self._refuse(f"{word!r} is not expected")
        return lambda _: constant

    def _constant(self, word: str) -> int | float:
        is_real = not word[:2].lower().startswith(("0x", "0b", "0o")) and re.search(r"[.eE]", word)
        try:
            constant: int | float = _bounded(float(word) if is_real else int(word, 0))
        except (ValueError, OverflowError) as error:
            self._refuse(str(error))
        return constant


def _value_of(name: str, names: _Names) -> Any:
    if name not in names:
        raise _UnknownName(repr(name))
    return _bounded(names[name])
