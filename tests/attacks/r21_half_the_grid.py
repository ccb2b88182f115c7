# attack: 21 the stated grid covers half of the output
# imitates: launch geometry that does less than the problem asks (seen: KernelBench)
# problem: vector_add
# expect: wrong_result
import triton
import triton.language as tl

LAUNCH = {"grid": ["(N + 2 * BLOCK - 1) / (2 * BLOCK)"], "constants": {"BLOCK": 256}, "num_warps": 4}


@triton.jit
def kernel(x, y, out, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < N) + tl.load(y + i, mask=i < N), mask=i < N)
