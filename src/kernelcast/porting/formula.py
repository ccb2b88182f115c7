"""Formulas: the simplest arithmetic over dimensions that gives some numbers for some sizes.

Extents of arrays and arguments of layers are seen for a few sizes. What they are for other sizes
follows from a formula that gives every number that was seen: a constant, a dimension, products,
quotients, sums, and the extents of convolutions. The first in the order of their complexity wins.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Samples = Sequence[Mapping[str, int]]
_Column = NDArray[np.int64]
_Candidate = tuple[str, _Column]

_CONSTANTS = (1, 2, 3, 4, 5, 6, 7, 8)
_BLOCKS = (16, 32, 64, 128, 256, 512)
_MOST_DIVISOR = 64
_MOST_POWER = 3
_MOST_FACTORS = 8
_LARGEST = 1 << 62


def find_formula(numbers: Sequence[int], samples: Samples) -> str | None:
    """The simplest formula that gives each number for the sizes of its sample; None for none.

    Args:
        numbers: What was seen.
        samples: The value of each dimension when it was seen.
    """
    if any(abs(number) >= _LARGEST for number in numbers):
        return None
    wanted = np.array(numbers, dtype=np.int64)
    if (wanted == wanted[0]).all():
        return str(numbers[0])
    columns = {
        name: np.array([sample[name] for sample in samples], dtype=np.int64)
        for name in samples[0]
        if min(sample[name] for sample in samples) > 0
    }
    varied = {name: column for name, column in columns.items() if (column != column[0]).any()}
    needed = influences(numbers, samples)
    if not needed <= varied.keys():
        return None
    # What is seen to matter comes first; a dimension may matter without having been seen to.
    for names in dict.fromkeys((tuple(name for name in varied if name in needed), tuple(varied))):
        pool = {name: varied[name] for name in names}
        for text, values in _candidates(wanted, pool, needed):
            if np.array_equal(values, wanted):
                return text
    return None


def influences(numbers: Sequence[int], samples: Samples) -> set[str]:
    """The dimensions that change a number: of two samples, in which nothing else differs."""
    found = set()
    for (one, here), (other, there) in itertools.combinations(
        zip(numbers, samples, strict=True), 2
    ):
        if one != other:
            different = [name for name in here if here[name] != there[name]]
            if len(different) == 1:
                found.add(different[0])
    return found


def find_product(numbers: Sequence[int], factors: Mapping[str, Sequence[int]]) -> str | None:
    """A product of formulas, and of a constant, that gives each number; None for none.

    Args:
        numbers: What was seen.
        factors: What each formula was then.
    """
    wanted = np.array(numbers, dtype=np.float64)
    names = list(factors)[:_MOST_FACTORS]
    columns = [np.array(factors[name], dtype=np.float64) for name in names]
    powers = itertools.product(range(_MOST_POWER), repeat=len(names))
    for exponents in sorted(powers, key=sum):
        product = np.ones(len(wanted))
        for column, exponent in zip(columns, exponents, strict=True):
            product = product * column**exponent
        ratio = wanted[0] / product[0]
        if ratio >= 1.0 and ratio == int(ratio) and np.array_equal(wanted, ratio * product):
            parts = [
                name for name, times in zip(names, exponents, strict=True) for _ in range(times)
            ]
            return multiplied([str(int(ratio)), *parts])
    return None


def multiplied(parts: Sequence[str]) -> str:
    """The product of some formulas; sums are put in parentheses, and ones are left out."""
    factors = [factor for part in parts for factor in _factors(part)]
    number = math.prod(int(factor) for factor in factors if factor.isdigit())
    rest = [factor for factor in factors if not factor.isdigit()]
    return " * ".join([*([str(number)] if number != 1 or not rest else []), *rest])


def added(parts: Sequence[str]) -> str:
    """The sum of some formulas, with equal ones taken together."""
    terms: dict[tuple[str, ...], list[str]] = {}
    numbers: Counter[tuple[str, ...]] = Counter()
    for part in parts:
        factors = _factors(part)
        rest = [factor for factor in factors if not factor.isdigit()]
        key = tuple(sorted(rest))
        terms.setdefault(key, rest)
        numbers[key] += math.prod(int(factor) for factor in factors if factor.isdigit())
    return " + ".join(multiplied([str(numbers[key]), *terms[key]]) for key in terms) or "0"


def _factors(text: str) -> list[str]:
    """The factors of a formula, as they can stand in a product."""
    outside, depth = "", 0
    for letter in text:
        depth += letter == "("
        outside += "x" if depth else letter
        depth -= letter == ")"
    if re.search(r"[+%/-]", outside):
        return [f"({text})"]
    ends = [match.span() for match in re.finditer(r" \* ", outside)]
    starts = [0, *(end for _, end in ends)]
    return [
        text[start:end]
        for start, end in zip(starts, [*(s for s, _ in ends), len(text)], strict=True)
    ]


def _candidates(
    wanted: _Column, pool: Mapping[str, _Column], needed: set[str]
) -> Iterator[_Candidate]:
    """Formulas over the dimensions of a pool that use all of those that are needed."""
    for text, names, values in (
        *_products(pool),
        *_sums(pool),
    ):
        if needed <= names:
            yield from _scaled(wanted, text, values)
    for text, names, values in _quotients(pool):
        if needed <= names:
            yield from _scaled(wanted, text, values)
    yield from _windows(pool, needed)


def _scaled(wanted: _Column, text: str, values: _Column) -> Iterator[_Candidate]:
    """A formula itself; times, over, plus a constant; or both."""
    yield text, values
    first, base = int(wanted[0]), int(values[0])
    if base == 0:
        return
    closed = text if text.isidentifier() else f"({text})"
    if first % base == 0 and first // base > 1:
        yield multiplied([str(first // base), text]), values * (first // base)
    for divisor in (*range(max(2, base // (first + 1)), _MOST_DIVISOR + 1), *_BLOCKS[3:]):
        if base // divisor < first:
            break
        yield f"{closed} // {divisor}", values // divisor
    yield f"{text} {_signed(first - base)}", values + (first - base)
    places = np.flatnonzero(values != base)
    if places.size:
        other = int(places[0])
        rise, run = int(wanted[other]) - first, int(values[other]) - base
        if rise % run == 0 and rise // run > 1:
            slope = rise // run
            offset = first - slope * base
            yield f"{multiplied([str(slope), text])} {_signed(offset)}", slope * values + offset


def _signed(number: int) -> str:
    return f"- {-number}" if number < 0 else f"+ {number}"


_Formula = tuple[str, set[str], _Column]


def _products(pool: Mapping[str, _Column]) -> Iterator[_Formula]:
    for count in (1, 2, 3, 4):
        names = pool if count < 4 or len(pool) <= 6 else ()
        for chosen in itertools.combinations_with_replacement(names, count):
            yield (
                " * ".join(chosen),
                set(chosen),
                math.prod((pool[name] for name in chosen), start=np.ones(1, dtype=np.int64)),
            )


def _sums(pool: Mapping[str, _Column]) -> Iterator[_Formula]:
    for one, other in itertools.combinations(pool, 2):
        yield f"{one} + {other}", {one, other}, pool[one] + pool[other]
        yield f"{one} - {other}", {one, other}, pool[one] - pool[other]
        yield f"{other} - {one}", {one, other}, pool[other] - pool[one]
    for one, other, factor in itertools.permutations(pool, 3):
        if one < other:
            values = (pool[one] + pool[other]) * pool[factor]
            yield f"({one} + {other}) * {factor}", {one, other, factor}, values
        yield (
            f"{one} * {other} + {factor}",
            {one, other, factor},
            pool[one] * pool[other] + pool[factor],
        )
    for chosen in itertools.combinations(pool, 3):
        yield (
            " + ".join(chosen),
            set(chosen),
            sum((pool[name] for name in chosen), start=np.zeros(1, dtype=np.int64)),
        )


def _quotients(pool: Mapping[str, _Column]) -> Iterator[_Formula]:
    for one, other in itertools.permutations(pool, 2):
        yield f"{one} // {other}", {one, other}, pool[one] // pool[other]
        rounded_up = (pool[one] + pool[other] - 1) // pool[other]
        yield f"({one} + {other} - 1) // {other}", {one, other}, rounded_up
    for one, other, third in itertools.permutations(pool, 3):
        names = {one, other, third}
        if one < other:
            yield f"{one} * {other} // {third}", names, pool[one] * pool[other] // pool[third]
        yield f"{one} // {other} * {third}", names, pool[one] // pool[other] * pool[third]
        if other < third:
            yield f"{one} // ({other} * {third})", names, pool[one] // (pool[other] * pool[third])
    for name, column in pool.items():
        for step in (*_CONSTANTS[1:], *_BLOCKS):
            yield f"({name} + {step - 1}) // {step}", {name}, (column + step - 1) // step


def _windows(pool: Mapping[str, _Column], needed: set[str]) -> Iterator[_Candidate]:
    """Extents of convolutions and of pooling, and of transposed ones.

    (d + 2p - l(k - 1) - 1) // s + 1, and (d - 1)s - 2p + l(k - 1) + o + 1.
    """
    ones: dict[str, Any] = {str(number): np.int64(number) for number in _CONSTANTS}
    zero = {"0": np.int64(0)}
    steps = {**{name: ones[name] for name in ("1", "2", "3", "4")}, **pool}
    pads = {**zero, **{name: ones[name] for name in ("1", "2", "3")}, **pool}
    kernels, dilations = {**ones, **pool}, {"1": ones["1"], "2": ones["2"], **pool}
    for extent in pool:
        roles = (kernels, steps, pads, dilations)
        for kernel, step, pad, dilation in itertools.product(*roles):
            used = [name for name in (extent, kernel, step, pad, dilation) if not name.isdigit()]
            if len(set(used)) < len(used) or len(needed - set(used)) > 1:
                continue
            span = dilations[dilation] * (kernels[kernel] - 1)
            padded = pool[extent] + 2 * pads[pad] - span - 1
            values = np.asarray(padded // steps[step] + 1)
            yield _window(extent, kernel, step, pad, dilation), values
            for more in {**zero, "1": ones["1"], **pool}:
                if more in used:
                    continue
                values = (pool[extent] - 1) * steps[step] - 2 * pads[pad] + span + 1
                values = np.asarray(values + (pool[more] if more in pool else int(more)))
                yield _grown(extent, kernel, step, pad, dilation, more), values


def _window(extent: str, kernel: str, step: str, pad: str, dilation: str) -> str:
    span = f"{dilation} * ({kernel} - 1)" if dilation != "1" else f"({kernel} - 1)"
    if kernel.isdigit() and dilation.isdigit():
        span = str(int(dilation) * (int(kernel) - 1))
    padding = "" if pad == "0" else f" + {2 * int(pad)}" if pad.isdigit() else f" + 2 * {pad}"
    if step == "1":
        inner = f"{extent}{padding}"
        if dilation == "1" and not kernel.isdigit():
            return f"{inner} - {kernel} + 1"
        return f"{inner} - {span}"
    if dilation == "1" and not kernel.isdigit():
        return f"({extent}{padding} - {kernel}) // {step} + 1"
    return f"({extent}{padding} - {span} - 1) // {step} + 1"


def _grown(extent: str, kernel: str, step: str, pad: str, dilation: str, more: str) -> str:
    number, parts = 1, [f"({extent} - 1) * {step}"]
    if step == "1":
        number, parts = 0, [extent]
    if pad.isdigit():
        number -= 2 * int(pad)
    else:
        parts.append(f"- 2 * {pad}")
    if kernel.isdigit() and dilation.isdigit():
        number += int(dilation) * (int(kernel) - 1)
    elif dilation == "1":
        parts.append(f"+ {kernel}")
        number -= 1
    else:
        parts.append(f"+ {dilation} * ({kernel} - 1)")
    if more.isdigit():
        number += int(more)
    else:
        parts.append(f"+ {more}")
    return " ".join([*parts, *([_signed(number)] if number else [])])
