"""Counts of small programs that can be worked out by hand; loops that are not run in full."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.emulator import counting
from kernelcast.emulator.counting import count
from kernelcast.emulator.counts import Counts
from kernelcast.emulator.kinds import Kind, kind_of
from kernelcast.emulator.machine import Launch
from kernelcast.emulator.memory import SampledArena
from kernelcast.emulator.ptx import read_ptx
from kernelcast.emulator.traffic import REQUESTS, SECTORS, WAVES, traffic_of
from tests.emulator.programs import entry

LANES = np.arange(64)
WARPS = LANES // 32


@pytest.mark.parametrize(
    ("stride", "size", "sectors"), [(4, 4, 8), (8, 4, 16), (128, 4, 64), (0, 4, 2), (16, 16, 32)]
)
def test_sectors_of_a_request(stride: int, size: int, sectors: int) -> None:
    found = traffic_of(LANES * stride, WARPS, size, shared=False)
    assert found[REQUESTS] == 2
    assert found[SECTORS] == sectors


@pytest.mark.parametrize(
    ("stride", "size", "waves"),
    [(4, 4, 2), (8, 4, 4), (128, 4, 64), (0, 4, 2), (132, 4, 2), (8, 8, 4), (16, 16, 8)],
)
def test_turns_of_shared_memory(stride: int, size: int, waves: int) -> None:
    assert traffic_of(LANES * stride, WARPS, size, shared=True)[WAVES] == waves


def counted(body: str, block: int = 64, turns: int = 100) -> Counts:
    module = read_ptx(entry(body, 2))
    sample = np.zeros(256, np.uint8)
    arena = SampledArena([1 << 30], [sample])
    launch = Launch((4, 1, 1), (block, 1, 1), [arena.addresses[0], turns])
    return count(module, module.entry(), launch, arena, 1)


LOOP = """
    .shared .align 4 .b8 tile[1024];
    mov.u32 %r1, %tid.x; ld.param.u64 %d0, [p0]; ld.param.u64 %d9, [p1]; cvt.u32.u64 %r9, %d9;
    mul.wide.u32 %d1, %r1, 4; add.u64 %d1, %d0, %d1;
    mov.u32 %r10, tile; mad.lo.u32 %r11, %r1, 4, %r10;
    mov.u32 %r5, 0;
$loop:
    setp.ge.u32 %p1, %r5, %r9; @%p1 bra $out;
    ld.global.f32 %r6, [%d1]; st.shared.f32 [%r11], %r6;
    INNER
    fma.rn.f32 %r8, %r6, %r6, %r8;
    add.u64 %d1, %d1, STRIDE; add.u32 %r5, %r5, 1;
    bra.uni $loop;
$out:
    st.global.f32 [%d0], %r8;
"""
INNER = """
    mov.u32 %r20, 0;
$inner: ld.shared.f32 %r21, [%r11]; add.u32 %r20, %r20, 1; setp.lt.u32 %p2, %r20, 12;
    @%p2 bra $inner;
"""


def flat(counts: Counts) -> dict[str, float]:
    kinds: tuple[Kind, ...] = (
        "float",
        "integer",
        "load_global",
        "load_shared",
        "barrier",
        "control",
    )
    numbers = {str(kind): counts.total(kind) for kind in kinds}
    for kind in ("load_global", "store_shared", "load_shared"):
        numbers[f"{kind} sectors"] = counts.traffic(kind).sectors
        numbers[f"{kind} waves"] = counts.traffic(kind).waves
    numbers["loaded"] = counts.loaded_sectors
    numbers["phases"] = sum(phase.times for phase in counts.phases)
    return numbers


@settings(max_examples=10, deadline=None)
@given(
    turns=st.sampled_from([0, 1, 2, 3, 5, 9, 40, 97]),
    inner=st.sampled_from(["", "bar.sync 0;", INNER, f"{INNER} bar.sync 0;"]),
    stride=st.sampled_from([4, 128, 256]),
)
def test_turns_that_are_left_out_are_counted(turns: int, inner: str, stride: int) -> None:
    body = LOOP.replace("INNER", inner).replace("STRIDE", str(stride))
    short = flat(counted(body, turns=turns))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "_SKIPPED_AT_LEAST", 10**9)
        full = flat(counted(body, turns=turns))
    assert short == pytest.approx(full)


TESTS = {
    "setp.ne.s32 %p1, %r5, %r9": (0, 3, 99, ""),
    "setp.lt.s32 %p1, %r5, %r9": (-7, 4, 90, ""),
    "setp.le.u32 %p1, %r5, %r9": (0, 4, 92, ""),
    "setp.gt.s32 %p1, %r5, %r9": (60, -7, -90, ""),
    "setp.ge.s32 %p1, %r5, %r9": (64, -8, -96, ""),
    "setp.ne.u32 %p1, %r6, 0": (1, 1, 0, "shr.u32 %r6, 0x40000000, %r5;"),
    "setp.ne.u32 %p1, %r6, 21": (0, 1, 0, "and.b32 %r6, %r5, 31;"),
    "setp.lt.u32 %p1, %r6, 900": (0, 1, 0, "mul.lo.u32 %r6, %r5, %r5;"),
    "setp.lt.u32 %p1, %r6, 901": (0, 1, 0, "mad.lo.u32 %r6, %r5, 17, 3;"),
}


@pytest.mark.parametrize("test", TESTS)
def test_the_end_of_a_loop_is_where_it_is(test: str) -> None:
    begin, step, end, more = TESTS[test]
    body = f"""
        mov.u32 %r5, {begin}; mov.u32 %r9, {end}; ld.param.u64 %d0, [p0];
        mov.u32 %r1, %tid.x; mad.wide.u32 %d1, %r1, 4, %d0;
    $loop:
        ld.global.f32 %r7, [%d1]; add.f32 %r8, %r8, %r7; add.u64 %d1, %d1, 256;
        add.s32 %r5, %r5, {step}; {more}
        {test}; @%p1 bra $loop;
        st.global.f32 [%d0], %r8;
    """
    short = flat(counted(body))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "_SKIPPED_AT_LEAST", 10**9)
        full = flat(counted(body))
    assert short == pytest.approx(full)
    assert full["float"] > 2 * 20


def test_what_a_table_says_where_to_look_is_sampled() -> None:
    body = """
        ld.param.u64 %d0, [p0]; mov.u32 %r5, 0; mov.u32 %r1, %tid.x; mul.wide.u32 %d4, %r1, 4;
        mov.u64 %d1, %d0;
    $loop:
        ld.global.u32 %r6, [%d1]; mad.wide.u32 %d2, %r6, 4, %d0; add.u64 %d2, %d2, %d4;
        ld.global.f32 %r7, [%d2]; add.f32 %r8, %r8, %r7;
        add.u64 %d1, %d1, 4; add.s32 %r5, %r5, 1; setp.ne.s32 %p1, %r5, 1000; @%p1 bra $loop;
        st.global.f32 [%d0], %r8;
    """
    counts = counted(body)
    assert not counts.exact
    assert counts.total("float") == 2 * 1000
    assert counts.traffic("load_global").sectors == pytest.approx(2 * 1000 * (1 + 4), rel=0.01)


def test_a_long_loop_takes_few_steps() -> None:
    body = LOOP.replace("INNER", "bar.sync 0;").replace("STRIDE", "256")
    counts = counted(body, turns=1_000_000)
    assert counts.total("float") == 2 * 1_000_000
    assert counts.loaded_sectors == 8 * 1_000_000
    assert sum(phase.times for phase in counts.phases) == 1_000_001


def test_lanes_that_do_nothing_are_seen() -> None:
    body = """
        mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 31; setp.ge.u32 %p1, %r2, 8; @%p1 bra $end;
        add.f32 %r3, %r3, %r3; add.f32 %r3, %r3, %r3; add.f32 %r3, %r3, %r3; add.f32 %r3, %r3, %r3;
    $end:
    """
    assert counted(body).efficiency < 0.7


def test_copies_go_through_both_memories() -> None:
    body = """
        .shared .align 16 .b8 tile[1024];
        mov.u32 %r1, %tid.x; ld.param.u64 %d0, [p0]; mad.wide.u32 %d1, %r1, 16, %d0;
        mov.u32 %r10, tile; mad.lo.u32 %r11, %r1, 16, %r10;
        cp.async.cg.shared.global [%r11], [%d1], 16; cp.async.commit_group; cp.async.wait_group 0;
    """
    counts = counted(body)
    assert counts.traffic("load_global").sectors == 32
    assert counts.traffic("store_shared").waves == 8


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("fma.rn.f32 %r1, %r1, %r1, %r1", "float"),
        ("fma.rn.f64 %d1, %d1, %d1, %d1", "double"),
        ("mad.lo.s32 %r1, %r1, %r1, %r1", "multiply"),
        ("add.s64 %d1, %d1, %d1", "wide"),
        ("ex2.approx.f32 %r1, %r1", "special"),
        ("cvt.u64.u32 %d1, %r1", "free"),
        ("cvt.rn.f32.s32 %r1, %r1", "convert"),
        ("div.s32 %r1, %r1, %r1", "divide_integer"),
        ("div.rn.f32 %r1, %r1, %r1", "divide"),
        ("ld.const.f32 %r1, [%d1]", "load_constant"),
        ("shfl.sync.bfly.b32 %r1, %r1, 1, 31, -1", "shuffle"),
    ],
)
def test_the_pipe_of_an_instruction(text: str, kind: Kind) -> None:
    (instruction, *_) = read_ptx(entry(f"{text};", 0)).entry().blocks[0]
    assert kind_of(instruction) == kind
