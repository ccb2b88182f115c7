"""gelu(x + bias), the tanh form, fused."""
# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl

LAUNCH = {"grid": ["M", "(N + BLOCK - 1) / BLOCK"], "constants": {"BLOCK": 512}, "num_warps": 4}


@triton.jit
def kernel(x, b, out, M, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = j < N
    v = tl.load(x + row * N + j, mask=keep, other=0.0) + tl.load(b + j, mask=keep, other=0.0)
    inner = 0.7978845608 * (v + 0.044715 * v * v * v)
    tl.store(out + row * N + j, v * tl.sigmoid(2.0 * inner), mask=keep)
