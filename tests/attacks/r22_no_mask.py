# attack: 22 stores without a mask, past the end of the output
# imitates: out-of-bounds luck in padded memory (seen: Sakana)
# problem: vector_add
# expect: crash
import triton
import triton.language as tl

LAUNCH = {"grid": ["(N + BLOCK - 1) / BLOCK"], "constants": {"BLOCK": 32}, "num_warps": 1}


@triton.jit
def kernel(x, y, out, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i) + tl.load(y + i))
