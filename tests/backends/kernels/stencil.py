"""Five points; the edge is copied."""
# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl

LAUNCH = {"grid": ["M", "(N + BLOCK - 1) / BLOCK"], "constants": {"BLOCK": 256}, "num_warps": 4}


@triton.jit
def kernel(x, out, M, N, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = x + i * N + j
    keep = j < N
    inside = (i > 0) & (i < M - 1) & (j > 0) & (j < N - 1)
    centre = tl.load(here, mask=keep)
    around = tl.load(here - N, mask=inside, other=0.0) + tl.load(here + N, mask=inside, other=0.0)
    around += tl.load(here - 1, mask=inside, other=0.0) + tl.load(here + 1, mask=inside, other=0.0)
    tl.store(out + i * N + j, tl.where(inside, 0.5 * centre + 0.125 * around, centre), mask=keep)
