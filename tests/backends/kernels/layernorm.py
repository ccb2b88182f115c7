"""A row a program, two passes over registers."""
# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl

LAUNCH = {"grid": ["M"], "constants": {"BLOCK": 1024, "EPS": 1e-5}, "num_warps": 8}


@triton.jit
def kernel(x, w, b, out, M, N, BLOCK: tl.constexpr, EPS: tl.constexpr):
    row, j = tl.program_id(0), tl.arange(0, BLOCK)
    keep = j < N
    values = tl.load(x + row * N + j, mask=keep, other=0.0)
    mean = tl.sum(values, axis=0) / N
    apart = tl.where(keep, values - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(apart * apart, axis=0) / N + EPS)
    scaled = apart * scale * tl.load(w + j, mask=keep) + tl.load(b + j, mask=keep)
    tl.store(out + row * N + j, scaled, mask=keep)
