"""Several blocks of elements a program, one after the other."""
# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl

LAUNCH = {
    "grid": ["(N + 4 * BLOCK - 1) / (4 * BLOCK)"],
    "constants": {"BLOCK": 512},
    "num_warps": 4,
}


@triton.jit
def kernel(x, y, out, N, BLOCK: tl.constexpr):
    start = tl.program_id(0) * 4 * BLOCK
    for step in tl.static_range(4):
        i = start + step * BLOCK + tl.arange(0, BLOCK)
        keep = i < N
        tl.store(out + i, 2.5 * tl.load(x + i, mask=keep) + tl.load(y + i, mask=keep), mask=keep)
