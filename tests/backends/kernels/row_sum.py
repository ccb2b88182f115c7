"""A row a program, in blocks with a running sum."""
# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl

LAUNCH = {"grid": ["M"], "constants": {"BLOCK": 256}, "num_warps": 2}


@triton.jit
def kernel(x, out, M, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    sums = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, N, BLOCK):
        j = start + tl.arange(0, BLOCK)
        sums += tl.load(x + row * N + j, mask=j < N, other=0.0)
    tl.store(out + row, tl.sum(sums, axis=0))
