"""Branches, loops, calls and barriers of many lanes; the faults that accesses show."""

from __future__ import annotations

import numpy as np
import pytest

from kernelcast.emulator.machine import Order, TooLong
from kernelcast.emulator.memory import LARGE_POISON, POISON, FaultKind
from kernelcast.emulator.ptx import NotEmulated
from tests.emulator.programs import applied, entry, result, run

# %r1 is the thread's number, %d1 the address of its element of array p0.
MINE = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x;
    mad.lo.u32 %r4, %r2, %r3, %r1;
    ld.param.u64 %d0, [p0]; mul.wide.u32 %d1, %r4, 4; add.u64 %d1, %d0, %d1;
"""
ORDERS: tuple[Order, ...] = ("together", "forwards", "backwards")


def numbers(count: int = 64) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.zeros(count, np.int32)


@pytest.mark.parametrize("order", ORDERS)
def test_lanes_leave_a_loop_when_they_are_done(order: Order) -> None:
    body = f"""{MINE}
        mov.u32 %r5, 0; mov.u32 %r6, %r1;
    $loop:
        setp.eq.u32 %p1, %r6, 0; @%p1 bra $out;
        add.u32 %r5, %r5, %r6; sub.u32 %r6, %r6, 1;
        bra.uni $loop;
    $out:
        st.global.u32 [%d1], %r5;
    """
    machine = run(entry(body, 1), [numbers()], block=(64, 1, 1), order=order)
    assert result(machine, 0, numbers()).tolist() == [n * (n + 1) // 2 for n in range(64)]
    assert not machine.faults


def test_branches_within_branches_meet_again() -> None:
    text = """
        setp.lt.s32 %p1, {a}, 0; mov.u32 {z}, 0;
        @%p1 bra $negative;
        setp.gt.s32 %p2, {a}, 10; @!%p2 bra $small;
        mov.u32 {z}, 1; bra $end;
    $small: mov.u32 {z}, 2; bra $end;
    $negative: mov.u32 {z}, 3;
    $end: add.u32 {z}, {z}, 100;
    """
    found = applied(text, ["s32"], "s32", [-5, 3, 20, -1, 10, 11])
    assert found.tolist() == [103, 102, 101, 103, 102, 101]


def test_names_of_an_inner_scope_are_its_own() -> None:
    text = """
        mov.u32 %r9, 1;
        {{ .reg .b32 %r9; .reg .pred p; mov.u32 %r9, 50; setp.gt.s32 p, {a}, 2;
           @p bra $done; add.u32 %r9, %r9, 5; $done: mov.u32 %r10, %r9; }}
        {{ .reg .b32 %r9; .reg .pred p; mov.u32 %r9, 7; setp.gt.s32 p, {a}, 1;
           @p bra $done; add.u32 %r9, %r9, 1; $done: add.u32 %r10, %r10, %r9; }}
        add.u32 {z}, %r9, %r10;
    """
    assert applied(text, ["s32"], "s32", [1, 2, 3]).tolist() == [64, 63, 58]


def test_a_switch_jumps_by_a_table() -> None:
    text = """
        mov.u32 {z}, 7;
        $table: .branchtargets $zero, $one, $two;
        brx.idx {a}, $table;
    $zero: mov.u32 {z}, 100; bra $end;
    $one: mov.u32 {z}, 101;
    $two: add.u32 {z}, {z}, 1000;
    $end:
    """
    assert applied(text, ["u32"], "u32", [2, 0, 1, 2]).tolist() == [1007, 100, 1101, 1007]


FUNCTIONS = """
.func (.param .b32 out) twice(.param .b32 given)
{
    .reg .b32 %r<4>;
    ld.param.b32 %r1, [given]; add.s32 %r2, %r1, %r1; st.param.b32 [out], %r2; ret;
}
.func (.param .b32 out) sum_to(.param .b32 given)
{
    .reg .b32 %r<9>; .reg .pred %p<2>;
    ld.param.b32 %r1, [given]; setp.gt.s32 %p1, %r1, 0; @%p1 bra $more;
    st.param.b32 [out], 0; ret;
$more:
    { .param .b32 a; .param .b32 b; sub.s32 %r2, %r1, 1; st.param.b32 [a], %r2;
      call.uni (b), sum_to, (a); ld.param.b32 %r3, [b]; }
    add.s32 %r4, %r3, %r1; st.param.b32 [out], %r4; ret;
}
"""


@pytest.mark.parametrize(
    ("name", "expected"), [("twice", [0, 2, 6, 10]), ("sum_to", [0, 1, 6, 15])]
)
def test_functions_are_called_by_some_lanes(name: str, expected: list[int]) -> None:
    body = f"""{MINE}
        ld.global.u32 %r5, [%d1];
        {{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r5;
           call.uni (b), {name}, (a); ld.param.b32 %r6, [b]; }}
        st.global.u32 [%d1], %r6;
    """
    given = np.array([0, 1, 3, 5], np.int32)
    machine = run(entry(body, 1, FUNCTIONS), [given], block=(4, 1, 1))
    assert result(machine, 0, given).tolist() == expected


REVERSES = """
    .shared .align 4 .b8 tile[256];
    MINE
    mov.u32 %r10, tile; mad.lo.u32 %r11, %r1, 4, %r10;
    st.shared.u32 [%r11], %r1;
    BARRIER
    sub.u32 %r12, 63, %r1; mad.lo.u32 %r13, %r12, 4, %r10;
    ld.shared.u32 %r14, [%r13];
    st.global.u32 [%d1], %r14;
"""


def reversing(barrier: str) -> str:
    return entry(REVERSES.replace("MINE", MINE).replace("BARRIER", barrier), 1)


@pytest.mark.parametrize("order", ORDERS)
def test_a_barrier_orders_what_warps_write_and_read(order: Order) -> None:
    machine = run(
        reversing("bar.sync 0;"), [numbers(128)], grid=(2, 1, 1), block=(64, 1, 1), order=order
    )
    assert result(machine, 0, numbers(128)).tolist() == [*range(63, -1, -1)] * 2
    assert not machine.faults


@pytest.mark.parametrize("order", ORDERS)
def test_a_missing_barrier_is_a_race(order: Order) -> None:
    machine = run(reversing(""), [numbers()], block=(64, 1, 1), order=order)
    assert {fault.kind for fault in machine.faults} == {"race"}


def test_one_warp_needs_no_barrier_and_equal_values_are_no_race() -> None:
    body = f"""
        .shared .align 4 .b8 flag[4];
        {MINE} mov.u32 %r10, flag; st.shared.u32 [%r10], 7; bar.sync 0;
        ld.shared.u32 %r11, [%r10]; st.global.u32 [%d1], %r11;
    """
    machine = run(entry(body, 1), [numbers()], block=(64, 1, 1))
    assert not machine.faults
    assert set(result(machine, 0, numbers()).tolist()) == {7}


ADDS = f"""
    .shared .align 4 .b8 sum[4];
    {MINE} mov.u32 %r10, sum; setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [%r10], 0;
    BEFORE red.shared.add.u32 [%r10], 1;
    AFTER ld.shared.u32 %r11, [%r10]; st.global.u32 [%d1], %r11;
"""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("before", "after"), [(True, True), (False, True), (True, False)])
def test_atomics_of_several_warps_race_with_other_accesses_alone(
    order: Order, before: bool, after: bool
) -> None:
    body = ADDS.replace("BEFORE", "bar.sync 0;" * before).replace("AFTER", "bar.sync 0;" * after)
    machine = run(entry(body, 1), [numbers()], block=(64, 1, 1), order=order)
    assert {fault.kind for fault in machine.faults} == (set() if before and after else {"race"})


def test_what_nothing_has_written_is_noted_whatever_it_holds() -> None:
    body = f"""
        .shared .align 4 .b8 some[256]; .local .align 4 .b8 own[8];
        {MINE} mov.u32 %r10, some; mad.lo.u32 %r10, %r1, 4, %r10; mov.u64 %d9, own;
        setp.lt.u32 %p1, %r1, 40; @%p1 st.shared.u32 [%r10], %r1; st.local.u32 [%d9], %r1;
        ld.local.u32 %r11, [%d9]; ld.shared.u32 %r11, [%r10]; ld.local.u32 %r12, [%d9+4];
        st.global.u32 [%d1], %r11;
    """
    for poison in (POISON, LARGE_POISON):
        machine = run(entry(body, 1), [numbers()], block=(64, 1, 1), poison=poison)
        assert not machine.faults
        assert [note.message for note in machine.unwritten] == [
            "byte 160 of shared memory, which has 256",
            "byte 4 of local memory, which has 16",
        ]
        assert result(machine, 0, numbers())[40] == np.full(4, poison, np.uint8).view("i4")[0]


@pytest.mark.parametrize(
    "barrier",
    [
        "setp.lt.u32 %p1, %r1, 40; @%p1 bar.sync 0; add.u32 %r20, %r1, 1;",
        "setp.lt.u32 %p1, %r1, 40; @%p1 bra $a; bar.sync 0; bra $b; $a: bar.sync 0; $b:",
    ],
)
def test_a_barrier_that_not_all_threads_reach(barrier: str) -> None:
    machine = run(reversing(barrier), [numbers()], block=(64, 1, 1))
    assert "divergent_barrier" in {fault.kind for fault in machine.faults}


def test_threads_that_have_left_need_not_come_to_a_barrier() -> None:
    body = f"""{MINE}
        setp.ge.u32 %p1, %r1, 40; @%p1 bra $end;
        bar.sync 0; st.global.u32 [%d1], %r1;
    $end:
    """
    machine = run(entry(body, 1), [numbers()], block=(64, 1, 1))
    assert not machine.faults
    assert result(machine, 0, numbers()).tolist() == [*range(40), *[0] * 24]


def test_named_barriers_let_groups_of_warps_go_on() -> None:
    body = f"""{MINE}
        setp.lt.u32 %p1, %r1, 32; @%p1 bra $first;
        bar.sync 2, 32; bar.sync 2, 32; bra $end;
    $first: bar.sync 1, 32;
    $end: st.global.u32 [%d1], 1;
    """
    machine = run(entry(body, 1), [numbers()], block=(64, 1, 1))
    assert not machine.faults
    assert result(machine, 0, numbers()).all()


FAULTS: list[tuple[FaultKind, str, str]] = [
    ("out_of_bounds", "ld.global.u32 %r9, [%d1+4];", "byte 128 of array 0, which has 128"),
    ("out_of_bounds", "st.global.u32 [%d0+-4], %r1;", "byte -4 of array 0"),
    ("out_of_bounds", "mov.u64 %d9, 8; ld.global.u32 %r9, [%d9];", "array 0"),
    ("out_of_bounds", "mov.u32 %r9, 16; ld.shared.u32 %r9, [%r9];", "shared memory, which has 16"),
    ("misaligned", "ld.global.v2.u32 {%r9, %r10}, [%d0+4];", "8 bytes at byte 4 of array 0"),
    ("trap", "setp.eq.u32 %p1, %r1, 3; @%p1 trap;", "stops itself"),
    ("trap", "setp.ne.u32 %p1, %r1, 3; @%p1 bra $fine; call.uni __assertfail, (); $fine:", "stops"),
]


@pytest.mark.parametrize(("kind", "text", "words"), FAULTS)
def test_a_fault_names_the_instruction(kind: FaultKind, text: str, words: str) -> None:
    body = f".shared .align 4 .b8 some[16];\n{MINE}\n{text}"
    machine = run(entry(body, 1), [numbers(32)])
    (fault,) = machine.faults
    assert fault.kind == kind
    assert words in fault.message
    assert fault.instruction.split()[0] in text


def test_a_fault_has_the_line_of_the_source() -> None:
    body = f"{MINE}\n.loc 1 42 3\nld.global.u32 %r9, [%d1+4];\n.loc 2 7 1\nadd.u32 %r9, %r9, 1;"
    (fault,) = run(entry(body, 1), [numbers(32)]).faults
    assert fault.line == 42


def test_a_loop_without_end_is_ended() -> None:
    with pytest.raises(TooLong):
        run(entry("$l: add.u32 %r1, %r1, 1; bra $l;", 1), [numbers()], steps=5000)


def test_a_launch_that_the_code_does_not_take_is_refused() -> None:
    text = entry("", 1, head=" .reqntid 128")
    with pytest.raises(NotEmulated, match="128"):
        run(text, [numbers()], block=(64, 1, 1))


def test_shared_memory_is_poisoned_for_each_block() -> None:
    body = f"""
        .shared .align 4 .b8 tile[128];
        {MINE} mov.u32 %r10, tile; mad.lo.u32 %r11, %r1, 4, %r10;
        setp.gt.u32 %p1, %r1, 7; @%p1 st.shared.u32 [%r11], %r1;
        ld.shared.u32 %r12, [%r11]; st.global.u32 [%d1], %r12;
    """
    machine = run(entry(body, 1), [numbers()], grid=(2, 1, 1))
    assert result(machine, 0, numbers()).tolist() == [*[-1] * 8, *range(8, 32)] * 2


def test_generic_addresses_reach_all_spaces() -> None:
    body = f"""
        .shared .align 8 .b8 tile[128]; .local .align 8 .b8 mine[16];
        {MINE}
        mov.u64 %d5, tile; cvta.shared.u64 %d6, %d5; mad.wide.u32 %d6, %r1, 4, %d6;
        st.u32 [%d6], %r1;
        mov.u64 %d7, mine; cvta.local.u64 %d8, %d7; add.u32 %r9, %r1, 100;
        st.u32 [%d8+4], %r9;
        ld.u32 %r10, [%d6]; ld.u32 %r11, [%d8+4]; add.u32 %r12, %r10, %r11;
        st.u32 [%d1], %r12;
    """
    machine = run(entry(body, 1), [numbers(32)])
    assert not machine.faults
    assert result(machine, 0, numbers(32)).tolist() == [100 + 2 * n for n in range(32)]


def test_constants_and_variables_of_the_module_are_there() -> None:
    before = """
    .const .align 4 .b8 table[16] = {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4};
    .global .align 4 .f32 factor = 0f40000000;
    """
    body = f"""{MINE}
        mov.u64 %d5, table; and.b32 %r9, %r1, 3; mad.wide.u32 %d6, %r9, 4, %d5;
        ld.const.u32 %r10, [%d6]; ld.global.u32 %r11, [factor]; add.u32 %r12, %r10, %r11;
        st.global.u32 [%d1], %r12;
    """
    machine = run(entry(body, 1, before), [numbers(32)])
    assert result(machine, 0, numbers(32)).tolist() == [0x40000000 + 1 + n % 4 for n in range(32)]


@pytest.mark.parametrize("order", ORDERS)
def test_atomics_take_turns(order: Order) -> None:
    body = f"""{MINE}
        atom.global.add.u32 %r9, [%d0], 1; ld.param.u64 %d5, [p1]; mad.wide.u32 %d6, %r9, 4, %d5;
        red.global.add.u32 [%d6], 1;
        atom.global.cas.b32 %r10, [%d0+4], 0, 5; red.global.max.s32 [%d0+8], %r4;
    """
    counted = np.zeros(128, np.int32)
    machine = run(
        entry(body, 2), [numbers(3), counted], grid=(2, 1, 1), block=(64, 1, 1), order=order
    )
    assert result(machine, 0, numbers(3)).tolist() == [128, 5, 127]
    assert result(machine, 1, counted).tolist() == [1] * 128
    assert not machine.faults


def test_a_copy_is_there_when_it_was_waited_for() -> None:
    def copying(wait: str) -> list[int]:
        body = f"""
            .shared .align 16 .b8 tile[128];
            {MINE} mov.u32 %r10, tile; mad.lo.u32 %r11, %r1, 4, %r10;
            cp.async.ca.shared.global [%r11], [%d1], 4;
            cp.async.commit_group; {wait} bar.sync 0;
            ld.shared.u32 %r12, [%r11]; st.global.u32 [%d1], %r12;
        """
        given = np.arange(32, dtype=np.int32)
        found: list[int] = result(run(entry(body, 1), [given]), 0, given).tolist()
        return found

    assert copying("cp.async.wait_group 0;") == [*range(32)]
    assert copying("cp.async.wait_all;") == [*range(32)]
    assert set(copying("")) == {-1}
    assert set(copying("cp.async.wait_group 1;")) == {-1}
