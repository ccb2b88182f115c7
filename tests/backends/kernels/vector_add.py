"""A block of elements a program."""
# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl

LAUNCH = {"grid": ["(N + BLOCK - 1) / BLOCK"], "constants": {"BLOCK": 1024}, "num_warps": 4}


@triton.jit
def kernel(x, y, out, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = i < N
    tl.store(out + i, tl.load(x + i, mask=keep) + tl.load(y + i, mask=keep), mask=keep)
