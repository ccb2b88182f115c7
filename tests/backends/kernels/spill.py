"""32 values a thread and their exponentials in 24 registers: it spills on purpose."""
# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl

LAUNCH = {"grid": ["M"], "constants": {"BLOCK": 1024}, "num_warps": 1, "maxnreg": 24}


@triton.jit
def kernel(x, out, M, N, BLOCK: tl.constexpr):
    row, j = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * N + j, mask=j < N, other=-float("inf"))
    values = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * N + j, values / tl.sum(values, axis=0), mask=j < N)
