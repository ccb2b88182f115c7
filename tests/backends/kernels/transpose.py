"""A tile a program, turned through shared memory by the compiler."""
# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl

LAUNCH = {
    "grid": ["(M + TILE - 1) / TILE", "(N + TILE - 1) / TILE"],
    "constants": {"TILE": 64},
    "num_warps": 4,
}


@triton.jit
def kernel(x, out, M, N, TILE: tl.constexpr):
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    j = tl.program_id(1) * TILE + tl.arange(0, TILE)
    tile = tl.load(x + i[:, None] * N + j[None, :], mask=(i[:, None] < M) & (j[None, :] < N))
    keep = (j[:, None] < N) & (i[None, :] < M)
    tl.store(out + j[:, None] * M + i[None, :], tl.trans(tile), mask=keep)
