"""Shuffles, votes and reductions of a warp, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.programs import applied

LANES = range(32)
VALUES = [(7 * lane + 3) % 32 for lane in LANES]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "shfl.sync.up.b32 {z}, {a}, 3, 0, -1;",
            [VALUES[max(n - 3, 0) if n >= 3 else n] for n in LANES],
        ),
        (
            "shfl.sync.down.b32 {z}, {a}, 5, 31, -1;",
            [VALUES[n + 5 if n < 27 else n] for n in LANES],
        ),
        ("shfl.sync.bfly.b32 {z}, {a}, 6, 31, -1;", [VALUES[n ^ 6] for n in LANES]),
        ("shfl.sync.idx.b32 {z}, {a}, 9, 31, -1;", [VALUES[9]] * 32),
        # In groups of 8 lanes.
        ("shfl.sync.idx.b32 {z}, {a}, 2, 6175, -1;", [VALUES[n // 8 * 8 + 2] for n in LANES]),
        (
            "shfl.sync.down.b32 {z}, {a}, 1, 6175, -1;",
            [VALUES[n + 1 if n % 8 < 7 else n] for n in LANES],
        ),
        (
            "setp.gt.u32 %p1, {a}, 20; vote.sync.ballot.b32 {z}, %p1, -1;",
            [sum((v > 20) << n for n, v in enumerate(VALUES))] * 32,
        ),
        (
            "setp.gt.u32 %p1, {a}, 20; vote.sync.any.pred %p2, %p1, -1; selp.b32 {z}, 1, 0, %p2;",
            [1] * 32,
        ),
        (
            "setp.gt.u32 %p1, {a}, 20; vote.sync.all.pred %p2, %p1, -1; selp.b32 {z}, 1, 0, %p2;",
            [0] * 32,
        ),
        ("activemask.b32 {z};", [2**32 - 1] * 32),
        ("redux.sync.add.u32 {z}, {a}, -1;", [sum(VALUES)] * 32),
        ("redux.sync.max.u32 {z}, {a}, -1;", [31] * 32),
        (
            "and.b32 %r9, {a}, 3; match.any.sync.b32 {z}, %r9, -1;",
            [sum((v % 4 == w % 4) << n for n, v in enumerate(VALUES)) for w in VALUES],
        ),
    ],
)
def test_a_warp(text: str, expected: list[int]) -> None:
    assert applied(text, ["u32"], "u32", VALUES).tolist() == expected


def test_a_shuffle_says_whether_its_source_was_in_range() -> None:
    text = "shfl.sync.up.b32 {z}|%p1, {a}, 4, 0, -1; selp.b32 {z}, 1, 0, %p1;"
    assert applied(text, ["u32"], "u32", VALUES).tolist() == [0] * 4 + [1] * 28


def test_the_lanes_of_two_warps_do_not_mix() -> None:
    values = np.arange(64)
    found = applied("shfl.sync.bfly.b32 {z}, {a}, 31, 31, -1;", ["u32"], "u32", values)
    assert found.tolist() == [*range(31, -1, -1), *range(63, 31, -1)]


def test_only_the_lanes_that_take_part_are_counted() -> None:
    text = """
        mov.u32 {z}, 0; setp.ge.u32 %p1, {a}, 16; @%p1 bra $end;
        activemask.b32 {z};
    $end:
    """
    few = sum((v < 16) << n for n, v in enumerate(VALUES))
    found = applied(text, ["u32"], "u32", VALUES)
    assert found.tolist() == [few if v < 16 else 0 for v in VALUES]
