"""How long a comparison keeps its outcome, against counting the turns."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.emulator.flow import Flow
from kernelcast.emulator.ptx import Function, Instruction, read_ptx
from kernelcast.emulator.turns import MOST_TURNS, Foreseen, carried_by, foresee, turns_alike
from tests.emulator.programs import entry

OUTCOMES = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}


def parsed(text: str) -> tuple[Function, list[tuple[Instruction, bool]]]:
    function = read_ptx(entry(text, 1)).entry()
    return function, [(i, True) for block in function.blocks for i in block if i.opcode != "ret"]


@given(
    outcome=st.sampled_from(sorted(OUTCOMES)),
    last=st.integers(-60, 60),
    step=st.integers(-9, 9),
)
def test_a_comparison_changes_where_it_would(outcome: str, last: int, step: int) -> None:
    _, ((comparison, _),) = parsed(f"setp.{outcome}.s32 %p1, %r1, %r2;")
    found = turns_alike(
        Foreseen((comparison,), exact=True),
        {id(comparison): np.array([last - step])},
        {id(comparison): np.array([last])},
        None,
    )
    now = OUTCOMES[outcome](last, 0)
    turns = range(1, 200)
    change = next((t for t in turns if OUTCOMES[outcome](last + t * step, 0) != now), None)
    assert found == (MOST_TURNS if change is None else change - 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("add.s32 %r1, %r1, 4; setp.lt.s32 %p1, %r1, %r9;", (1, True)),
        (
            "add.s32 %r1, %r1, 4; mad.lo.s32 %r2, %r1, %r8, %r7; setp.lt.s32 %p1, %r2, %r9;",
            (1, True),
        ),
        ("add.s32 %r1, %r1, 4; setp.lt.s32 %p1, %r8, %r9;", (0, True)),
        ("add.s32 %r1, %r1, 4; xor.b32 %r2, %r1, 3;", (0, False)),
        ("add.s32 %r1, %r1, 4; mul.lo.s32 %r2, %r1, %r1;", (0, False)),
        ("ld.global.u32 %r3, [%d1]; add.s32 %r1, %r1, 4;", (0, False)),
    ],
)
def test_what_varies_is_followed(text: str, expected: tuple[int, bool]) -> None:
    function, turn = parsed(text)
    tests = foresee(turn, Flow(function), ["%r1"])
    assert tests is not None
    assert (len(tests.comparisons), tests.exact) == expected


@pytest.mark.parametrize(
    "text",
    [
        "ld.global.u32 %r3, [%d1]; setp.lt.s32 %p1, %r3, 1; @%p1 bra $end; $end:",
        "and.b32 %r2, %r1, 7; setp.lt.s32 %p1, %r2, 3; @%p1 bra $end; $end:",
        "setp.lt.s32 %p1, %r1, 3; setp.lt.s32 %p1, %r1, 3;",
        "ld.global.u32 %r3, [%d1]; add.s32 %r8, %r8, %r3;",
    ],
)
def test_a_path_that_may_change_otherwise_is_not_foreseen(text: str) -> None:
    function, turn = parsed(text)
    assert foresee(turn, Flow(function), ["%r1"]) is None


@pytest.mark.parametrize("by_all", [True, False])
def test_a_register_that_some_lanes_keep_still_varies(by_all: bool) -> None:
    text = "add.s32 %r2, %r1, 4; mov.u32 %r2, 5; setp.lt.s32 %p1, %r2, %r9; add.s32 %r1, %r1, 4;"
    function, turn = parsed(text if not by_all else text.replace("mov", "@%p2 mov"))
    kept = [(instruction, by_all or instruction.opcode != "mov") for instruction, _ in turn]
    foreseen = foresee(kept, Flow(function), ["%r1"])
    assert foreseen is not None
    assert len(foreseen.comparisons) == 1
    function, turn = parsed(text)
    everywhere = foresee(turn, Flow(function), ["%r1"])
    assert everywhere is not None
    assert not everywhere.comparisons


def test_what_is_read_before_it_is_written_is_carried() -> None:
    function, turn = parsed("add.s32 %r1, %r1, %r2; mov.u32 %r3, 1; add.s32 %r4, %r3, 1;")
    assert carried_by(turn, Flow(function)) == {"%r1", "%r2"}
