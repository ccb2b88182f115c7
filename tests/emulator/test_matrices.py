"""Matrix instructions against NumPy, with the fragments as NVIDIA documents them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernelcast.emulator.arithmetic import from_bf16, to_bf16
from tests.emulator.programs import Array, entry, result, run

MINE = (
    "mov.u32 %r1, %tid.x; ld.param.u64 %d0, [p0]; ld.param.u64 %d1, [p1]; ld.param.u64 %d2, [p2];"
)


def words(halves: Array) -> Array:
    return np.ascontiguousarray(halves).view(np.uint32)


def fragments(a: Array, b: Array, per: int) -> tuple[Array, Array]:
    """The elements that each lane holds of A (16 x K) and B (K x 8), `per` to a word."""
    depth = a.shape[1]
    first = np.zeros((32, depth // 2), a.dtype)
    second = np.zeros((32, depth // 4), b.dtype)
    for lane in range(32):
        group, member = divmod(lane, 4)
        for index in range(depth // 2):
            register, place = divmod(index, per)
            row = group + 8 * (register % 2)
            first[lane, index] = a[row, member * per + place + register // 2 * 4 * per]
        for index in range(depth // 4):
            register, place = divmod(index, per)
            second[lane, index] = b[member * per + place + register * 4 * per, group]
    return first, second


def unpacked(c: Array) -> Array:
    """The matrix (16 x 8) of the four sums of each lane."""
    full = np.zeros((16, 8), c.dtype)
    for lane in range(32):
        for index in range(4):
            full[lane // 4 + 8 * (index // 2), lane % 4 * 2 + index % 2] = c[lane, index]
    return full


def product(kind: str, depth: int, a: Array, b: Array, result_kind: str) -> Array:
    """Load the words of both fragments, multiply, store four sums for each lane."""
    n, m = a.shape[1], b.shape[1]
    first = ", ".join(f"%r{10 + i}" for i in range(n))
    second = ", ".join(f"%r{20 + i}" for i in range(m))
    loads = "".join(f"ld.global.b32 %r{10 + i}, [%d3+{4 * i}];" for i in range(n))
    loads += "".join(f"ld.global.b32 %r{20 + i}, [%d4+{4 * i}];" for i in range(m))
    body = f"""{MINE}
        mad.wide.u32 %d3, %r1, {4 * n}, %d0; mad.wide.u32 %d4, %r1, {4 * m}, %d1;
        mad.wide.u32 %d5, %r1, 16, %d2; {loads}
        mov.b32 %r30, 0;
        mma.sync.aligned.m16n8k{depth}.row.col.{result_kind}.{kind}.{kind}.{result_kind}
            {{%r2, %r3, %r4, %r5}}, {{{first}}}, {{{second}}}, {{%r30, %r30, %r30, %r30}};
        st.global.v4.b32 [%d5], {{%r2, %r3, %r4, %r5}};
    """
    sums = np.zeros((32, 4), np.int32 if result_kind == "s32" else np.float32)
    return unpacked(result(run(entry(body, 3), [a, b, sums]), 2, sums))


def test_half_precision() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((16, 16), (16, 8)))
    first, second = fragments(a, b, 2)
    found = product("f16", 16, words(first), words(second), "f32")
    np.testing.assert_allclose(found, a.astype(float) @ b.astype(float), rtol=1e-5, atol=1e-5)


def test_bfloat() -> None:
    rng = np.random.default_rng(2)
    a, b = (to_bf16(rng.standard_normal(shape).astype(np.float32)) for shape in ((16, 16), (16, 8)))
    first, second = fragments(a, b, 2)
    found = product("bf16", 16, words(first), words(second), "f32")
    np.testing.assert_allclose(found, from_bf16(a) @ from_bf16(b), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("depth", [4, 8])
def test_tf32_uses_ten_bits_of_each_factor(depth: int) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((16, depth), (depth, 8)))
    first, second = fragments(a, b, 1)
    found = product("tf32", depth, words(first), words(second), "f32")
    cut = [(x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b)]
    np.testing.assert_allclose(found, cut[0].astype(float) @ cut[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("depth", [16, 32])
def test_bytes(depth: int) -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-128, 128, s, dtype=np.int8) for s in ((16, depth), (depth, 8)))
    first, second = fragments(a, b, 4)
    found = product("s8", depth, words(first), words(second), "s32")
    np.testing.assert_array_equal(found, a.astype(int) @ b.astype(int))


@pytest.mark.parametrize("transposed", [False, True])
def test_rows_of_matrices_are_spread_over_a_warp_and_stored_again(transposed: bool) -> None:
    given = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
    way = ".trans" if transposed else ""
    body = f"""
        .shared .align 16 .b8 tile[1024];
        {MINE}
        mad.wide.u32 %d3, %r1, 16, %d0; ld.global.v4.b32 {{%r2, %r3, %r4, %r5}}, [%d3];
        mov.u32 %r10, tile; mad.lo.u32 %r11, %r1, 16, %r10;
        st.shared.v4.b32 [%r11], {{%r2, %r3, %r4, %r5}};
        ldmatrix.sync.aligned.m8n8.x4{way}.shared.b16 {{%r12, %r13, %r14, %r15}}, [%r11];
        mad.wide.u32 %d4, %r1, 16, %d1; st.global.v4.b32 [%d4], {{%r12, %r13, %r14, %r15}};
        stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r11+512], {{%r12, %r13, %r14, %r15}};
        ld.shared.v4.b32 {{%r2, %r3, %r4, %r5}}, [%r11+512];
        mad.wide.u32 %d5, %r1, 16, %d2; st.global.v4.b32 [%d5], {{%r2, %r3, %r4, %r5}};
    """
    held, stored = np.zeros((32, 4, 2), np.uint16), np.zeros_like(given)
    machine = run(entry(body, 3), [given, held, stored])
    source: Any = given.transpose(0, 2, 1) if transposed else given
    held = result(machine, 1, held)
    for lane in range(32):
        for matrix in range(4):
            row, column = lane // 4, lane % 4 * 2
            assert held[lane, matrix].tolist() == source[matrix, row, column : column + 2].tolist()
    np.testing.assert_array_equal(result(machine, 2, stored), source)


@pytest.mark.parametrize("layout", ["row", "col"])
def test_wmma_multiplies_what_it_loads(layout: str) -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((16, 16)).astype(np.float16) for _ in range(2))
    eight = ", ".join(f"%r{10 + i}" for i in range(8))
    other = ", ".join(f"%r{20 + i}" for i in range(8))
    sums = ", ".join(f"%r{i}" for i in range(2, 10))
    body = f"""{MINE}
        wmma.load.a.sync.aligned.{layout}.m16n16k16.global.f16 {{{eight}}}, [%d0], 16;
        wmma.load.b.sync.aligned.row.m16n16k16.global.f16 {{{other}}}, [%d1], 16;
        wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {{{sums}}}, [%d2], 16;
        wmma.mma.sync.aligned.{layout}.row.m16n16k16.f32.f32
            {{{sums}}}, {{{eight}}}, {{{other}}}, {{{sums}}};
        wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%d2], {{{sums}}}, 16;
    """
    c = rng.standard_normal((16, 16)).astype(np.float32)
    found = result(run(entry(body, 3), [a, b, c]), 2, c)
    first = a.T if layout == "col" else a
    np.testing.assert_allclose(found, first.astype(float) @ b + c, rtol=1e-4, atol=1e-4)
