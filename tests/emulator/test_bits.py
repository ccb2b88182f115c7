"""Conversions, comparisons and moves against their definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emulator.programs import applied

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("text", "kinds", "kind", "given", "expected"),
    [
        (
            "cvt.rzi.s32.f32 {z}, {a};",
            ["f32"],
            "s32",
            [2.9, -2.9, 3e9, -3e9, NAN],
            [2, -2, 2**31 - 1, -(2**31), 0],
        ),
        ("cvt.rni.s32.f32 {z}, {a};", ["f32"], "s32", [2.5, 3.5, -2.5], [2, 4, -2]),
        ("cvt.rmi.f32.f32 {z}, {a};", ["f32"], "f32", [2.9, -2.1], [2.0, -3.0]),
        ("cvt.rpi.f32.f32 {z}, {a};", ["f32"], "f32", [2.1, -2.9], [3.0, -2.0]),
        ("cvt.rzi.u32.f32 {z}, {a};", ["f32"], "u32", [-1.0, 5.7, 1e10], [0, 5, 2**32 - 1]),
        ("cvt.rn.f32.s32 {z}, {a};", ["s32"], "f32", [-5, 2**24 + 1], [-5.0, 2.0**24]),
        ("cvt.rz.f32.s32 {z}, {a};", ["s32"], "f32", [2**24 + 3], [2.0**24 + 2]),
        ("cvt.s64.s32 {z}, {a};", ["s32"], "s64", [-1, 7], [-1, 7]),
        ("cvt.u64.u32 {z}, {a};", ["u32"], "u64", [2**32 - 1], [2**32 - 1]),
        ("cvt.s32.s8 {z}, {a};", ["s32"], "s32", [255, 127, 128], [-1, 127, -128]),
        (
            "cvt.sat.u8.s32 %h5, {a}; cvt.u32.u8 {z}, %h5;",
            ["s32"],
            "u32",
            [-4, 77, 999],
            [0, 77, 255],
        ),
        (
            "cvt.rn.f16.f32 %h5, {a}; cvt.f32.f16 {z}, %h5;",
            ["f32"],
            "f32",
            [1 / 3, 1e9],
            [0.333251953125, INF],
        ),
        ("cvt.rn.bf16x2.f32 {z}, {a}, {b};", ["f32", "f32"], "b32", [1.0], [0x3F804000]),
        ("cvt.rna.tf32.f32 {z}, {a};", ["f32"], "b32", [1 + 2**-11], [0x3F802000]),
        ("cvt.sat.f32.f32 {z}, {a};", ["f32"], "f32", [-1.0, 0.5, 7.0, NAN], [0.0, 0.5, 1.0, 0.0]),
    ],
)
def test_conversions(
    text: str, kinds: list[str], kind: str, given: list[Any], expected: list[Any]
) -> None:
    values = [given] if len(kinds) == 1 else [given, [2.0]]
    assert applied(text, kinds, kind, *values).tolist() == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lt", [1, 0, 0, 0]),
        ("ltu", [1, 0, 0, 1]),
        ("eq", [0, 1, 0, 0]),
        ("ne", [1, 0, 1, 0]),
        ("neu", [1, 0, 1, 1]),
        ("num", [1, 1, 1, 0]),
        ("nan", [0, 0, 0, 1]),
    ],
)
def test_comparisons_with_what_is_no_number(name: str, expected: list[int]) -> None:
    text = f"setp.{name}.f32 %p1, {{a}}, {{b}}; selp.u32 {{z}}, 1, 0, %p1;"
    found = applied(text, ["f32", "f32"], "u32", [1.0, 2.0, 3.0, NAN], [2.0, 2.0, 2.0, 2.0])
    assert found.tolist() == expected


def test_a_comparison_is_combined_with_a_condition_and_gives_its_opposite() -> None:
    text = """
        setp.gt.s32 %p1, {a}, 1; setp.lt.and.s32 %p2|%p3, {a}, 3, %p1;
        selp.u32 %r9, 10, 0, %p2; selp.u32 %r10, 1, 0, %p3; add.u32 {z}, %r9, %r10;
    """
    assert applied(text, ["s32"], "u32", [0, 2, 5]).tolist() == [0, 10, 1]


@settings(max_examples=10)
@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=32))
def test_words_are_taken_apart_and_put_together(values: list[int]) -> None:
    text = """
        mov.b64 {{%r5, %r6}}, {a}; mov.b32 {{%h5, %h6}}, %r5; mov.b32 %r7, {{%h6, %h5}};
        mov.b64 {z}, {{%r6, %r7}};
    """
    found = applied(text, ["u64"], "u64", np.array(values, np.uint64))
    expected = [v >> 32 | ((v >> 16 & 0xFFFF) | (v & 0xFFFF) << 16) << 32 for v in values]
    assert found.tolist() == expected


def test_a_guarded_instruction_leaves_the_other_lanes_as_they_are() -> None:
    text = "mov.u32 {z}, 9; setp.gt.s32 %p1, {a}, 1; @%p1 add.s32 {z}, {a}, 100;"
    assert applied(text, ["s32"], "s32", [0, 1, 2, 3]).tolist() == [9, 9, 102, 103]
