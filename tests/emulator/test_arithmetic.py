"""Integer instructions against Python's integers, floating point against NumPy's wider types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.emulator.ptx import NotEmulated
from tests.emulator.programs import applied

EDGES = (0, 1, 2, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 255, 0x7FFF, 0x8000, 0xFFFF)


def wrapped(value: int, bits: int, *, signed: bool) -> int:
    """The integer of so many bits that is left of a value."""
    value %= 1 << bits
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def integers(kind: str) -> st.SearchStrategy[int]:
    bits, signed = int(kind[1:]), kind[0] == "s"
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    edges = [value for value in (*EDGES, low, low + 1, high, high - 1) if low <= value <= high]
    return st.sampled_from(edges) | st.integers(low, high)


def towards_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


ALL = ("u16", "s16", "u32", "s32", "u64", "s64")
# opcode, types, what it computes, whether the second operand may be 0
SUMS: dict[str, tuple[tuple[str, ...], Callable[..., int]]] = {
    "add": (ALL, lambda a, b: a + b),
    "sub": (ALL, lambda a, b: a - b),
    "mul.lo": (ALL, lambda a, b: a * b),
    "min": (ALL, min),
    "max": (ALL, max),
    "div": (ALL, lambda a, b: towards_zero(a, b) if b else -1),
    "rem": (ALL, lambda a, b: a - towards_zero(a, b) * b if b else a),
}


def pairs(opcode: str) -> list[tuple[str, str]]:
    return [(opcode, kind) for kind in SUMS[opcode][0]]


@pytest.mark.parametrize(("opcode", "kind"), [pair for opcode in SUMS for pair in pairs(opcode)])
@settings(max_examples=15)
@given(data=st.data())
def test_two_integers(opcode: str, kind: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.tuples(integers(kind), integers(kind)), min_size=1, max_size=32))
    if opcode == "rem":
        values = [(a, b) for a, b in values if b] or [(7, 3)]
    one, two = zip(*values, strict=True)
    bits, signed = int(kind[1:]), kind[0] == "s"
    found = applied(f"{opcode}.{kind} {{z}}, {{a}}, {{b}};", [kind, kind], kind, one, two)
    exact = SUMS[opcode][1]
    assert found.tolist() == [wrapped(exact(a, b), bits, signed=signed) for a, b in values]


@pytest.mark.parametrize("kind", ALL)
@settings(max_examples=15)
@given(data=st.data())
def test_products_in_full(kind: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.tuples(integers(kind), integers(kind)), min_size=1, max_size=32))
    one, two = zip(*values, strict=True)
    bits, signed = int(kind[1:]), kind[0] == "s"
    high = applied(f"mul.hi.{kind} {{z}}, {{a}}, {{b}};", [kind, kind], kind, one, two)
    assert high.tolist() == [wrapped((a * b) >> bits, bits, signed=signed) for a, b in values]
    if bits < 64:
        wide = f"{kind[0]}{2 * bits}"
        full = applied(f"mul.wide.{kind} {{z}}, {{a}}, {{b}};", [kind, kind], wide, one, two)
        assert full.tolist() == [a * b for a, b in values]
        total = applied(
            f"mad.wide.{kind} {{z}}, {{a}}, {{b}}, {{c}};",
            [kind, kind, wide],
            wide,
            one,
            two,
            [5] * len(one),
        )
        assert total.tolist() == [wrapped(a * b + 5, 2 * bits, signed=signed) for a, b in values]


@settings(max_examples=15)
@given(st.lists(st.tuples(integers("u64"), integers("u64")), min_size=1, max_size=32))
def test_carries_make_wide_sums_of_narrow_ones(values: list[tuple[int, int]]) -> None:
    one, two = zip(*values, strict=True)
    text = (
        "mov.b64 {{%r20, %r21}}, {a}; mov.b64 {{%r22, %r23}}, {b};"
        "OPERATION.cc.u32 %r24, %r20, %r22; OPERATIONc.u32 %r25, %r21, %r23;"
        "mov.b64 {z}, {{%r24, %r25}};"
    )
    for operation, sign in (("add", 1), ("sub", -1)):
        found = applied(text.replace("OPERATION", operation), ["u64", "u64"], "u64", one, two)
        assert found.tolist() == [(a + sign * b) % 2**64 for a, b in values]


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
@settings(max_examples=15)
@given(data=st.data())
def test_shifts_and_fields(kind: str, data: st.DataObject) -> None:
    counts = st.sampled_from([0, 1, 5, 31, 32, 33, 63, 64, 65, 200])
    rows = st.tuples(integers(kind), counts, counts)
    values = data.draw(st.lists(rows, min_size=1, max_size=32))
    one, two, three = zip(*values, strict=True)
    bits, signed = int(kind[1:]), kind[0] == "s"
    right = applied(f"shr.{kind} {{z}}, {{a}}, {{b}};", [kind, "u32"], kind, one, two)
    assert right.tolist() == [a >> min(b, bits) for a, b, _ in values]
    left = applied(f"shl.b{bits} {{z}}, {{a}}, {{b}};", [kind, "u32"], kind, one, two)
    assert left.tolist() == [wrapped(a << min(b, bits), bits, signed=signed) for a, b, _ in values]

    def field(value: int, start: int, length: int) -> int:
        # The definition in the manual: bit by bit, the sign from the last one.
        last = min(start + length - 1, bits - 1)
        sign = signed and length > 0 and value >> last & 1
        digits = [
            (value >> start + i & 1) if i < length and start + i < bits else sign
            for i in range(bits)
        ]
        return wrapped(sum(int(digit) << i for i, digit in enumerate(digits)), bits, signed=signed)

    found = applied(
        f"bfe.{kind} {{z}}, {{a}}, {{b}}, {{c}};", [kind, "u32", "u32"], kind, one, two, three
    )
    assert found.tolist() == [field(*row) for row in values]


@settings(max_examples=15)
@given(
    st.lists(st.tuples(integers("u32"), integers("u32"), integers("u32")), min_size=1, max_size=32)
)
def test_words_of_32_bits(values: list[tuple[int, int, int]]) -> None:
    columns = list(zip(*values, strict=True))
    unary: dict[str, Callable[[int], int]] = {
        "popc.b32": lambda a: a.bit_count(),
        "clz.b32": lambda a: 32 - a.bit_length(),
        "brev.b32": lambda a: int(f"{a:032b}"[::-1], 2),
        "bfind.u32": lambda a: (a.bit_length() - 1) % 2**32,
        "not.b32": lambda a: ~a % 2**32,
    }
    for name, exact in unary.items():
        found = applied(f"{name} {{z}}, {{a}};", ["u32"], "u32", columns[0])
        assert found.tolist() == [exact(a) for a, _, _ in values], name

    def permuted(a: int, b: int, selector: int) -> int:
        octets = (a | b << 32).to_bytes(8, "little")
        chosen = []
        for index in range(4):
            nibble = selector >> 4 * index & 15
            octet = octets[nibble & 7]
            chosen.append((0xFF if octet >> 7 else 0) if nibble & 8 else octet)
        return int.from_bytes(bytes(chosen), "little")

    def chosen(table: int) -> Callable[[int, int, int], int]:
        return lambda a, b, c: sum(
            (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i
            for i in range(32)
        )

    ternary: dict[str, Callable[[int, int, int], int]] = {
        "prmt.b32 {z}, {a}, {b}, {c};": permuted,
        "lop3.b32 {z}, {a}, {b}, {c}, 0xE8;": chosen(0xE8),
        "lop3.b32 {z}, {a}, {b}, {c}, 0x96;": chosen(0x96),
        "shf.l.wrap.b32 {z}, {a}, {b}, {c};": lambda a, b, c: (
            ((b << 32 | a) << (c & 31)) >> 32 & 0xFFFFFFFF
        ),
        "shf.r.clamp.b32 {z}, {a}, {b}, {c};": lambda a, b, c: (
            (b << 32 | a) >> min(c, 32) & 0xFFFFFFFF
        ),
    }
    for text, exact_of_three in ternary.items():
        found = applied(text, ["u32"] * 3, "u32", *columns)
        assert found.tolist() == [exact_of_three(*row) for row in values], text


# ----------------------------------------------------------------------------- floating point

HALF_BITS = st.integers(0, 2**16 - 1)  # floats of 16 bits are drawn by leaving most out
SINGLE = st.floats(width=32)


@pytest.mark.parametrize("opcode", ["add.rn", "sub.rn", "mul.rn", "div.rn"])
@settings(max_examples=15)
@given(values=st.lists(st.tuples(SINGLE, SINGLE), min_size=1, max_size=32))
def test_single_precision_is_rounded_once(opcode: str, values: list[tuple[float, float]]) -> None:
    one, two = (np.array(column, np.float32) for column in zip(*values, strict=True))
    found = applied(f"{opcode}.f32 {{z}}, {{a}}, {{b}};", ["f32", "f32"], "f32", one, two)
    wide: dict[str, Any] = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide
    }  # fmt: skip
    with np.errstate(all="ignore"):
        exact = wide[opcode[:3]](one.astype(np.longdouble), two).astype(np.float32)
    np.testing.assert_array_equal(found, exact)


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@settings(max_examples=15)
@given(values=st.lists(st.tuples(SINGLE, SINGLE), min_size=1, max_size=32))
def test_directed_rounding(mode: str, values: list[tuple[float, float]]) -> None:
    one, two = (np.array(column, np.float32) for column in zip(*values, strict=True))
    found = applied(f"mul.{mode}.f32 {{z}}, {{a}}, {{b}};", ["f32", "f32"], "f32", one, two)
    with np.errstate(all="ignore"):
        exact = one.astype(np.float64) * two  # in double precision there is nothing to round
    finite = np.isfinite(exact) & np.isfinite(found)
    if mode == "rm":
        assert (found[finite] <= exact[finite]).all()
    elif mode == "rp":
        assert (found[finite] >= exact[finite]).all()
    else:
        assert (np.abs(found[finite]) <= np.abs(exact[finite])).all()


@settings(max_examples=15)
@given(st.lists(st.tuples(SINGLE, SINGLE, SINGLE), min_size=1, max_size=32))
def test_fused_products_are_rounded_once(values: list[tuple[float, float, float]]) -> None:
    columns = [np.array(column, np.float32) for column in zip(*values, strict=True)]
    found = applied("fma.rn.f32 {z}, {a}, {b}, {c};", ["f32"] * 3, "f32", *columns)
    with np.errstate(all="ignore"):
        a, b, c = (column.astype(np.longdouble) for column in columns)
        exact = (a * b + c).astype(np.float32)
    np.testing.assert_allclose(found, exact, rtol=2**-23)


@settings(max_examples=15)
@given(st.lists(st.tuples(HALF_BITS, HALF_BITS), min_size=1, max_size=32))
def test_two_halves_of_a_word(bits: list[tuple[int, int]]) -> None:
    columns = (np.array(column, np.uint16) for column in zip(*bits, strict=True))
    one, two = (column.view(np.float16) for column in columns)
    words = [
        np.stack([column, column[::-1]], 1).copy().view(np.uint32)[:, 0] for column in (one, two)
    ]
    found = applied("add.f16x2 {z}, {a}, {b};", ["b32", "b32"], "b32", *words)
    with np.errstate(all="ignore"):
        exact = one + two
    halves = found.view(np.float16).reshape(-1, 2)
    np.testing.assert_array_equal(halves[:, 0], exact)
    np.testing.assert_array_equal(halves[:, 1], exact[::-1])


def test_the_least_of_a_number_and_none_is_the_number() -> None:
    none = float("nan")
    found = applied("min.f32 {z}, {a}, {b};", ["f32"] * 2, "f32", [none, 1.0], [2.0, none])
    assert found.tolist() == [2.0, 1.0]
    kept = applied("max.NaN.f32 {z}, {a}, {b};", ["f32"] * 2, "f32", [none, 1.0], [2.0, none])
    assert np.isnan(kept).all()


@pytest.mark.parametrize(
    "text",
    [
        "add.strange.s32 {z}, {a}, {b};",
        "mul.lo.s32.rn {z}, {a}, {b};",
        "frobnicate.s32 {z}, {a}, {b};",
        "setp.lt.f16x2 %p0|%p1, {a}, {b};",
        "add.s32 {z}, {a}, %nothing;",
    ],
)
def test_what_is_not_known_is_named(text: str) -> None:
    with pytest.raises(NotEmulated) as error:
        applied(text, ["s32", "s32"], "s32", [1], [2])
    assert text.split()[0] in str(error.value)
