# attack: 18 a constant where the answer varies little
# imitates: a constant for a degenerate problem (seen: KernelBench)
# problem: softmax
# expect: wrong_result
import triton
import triton.language as tl

LAUNCH = {"grid": ["M"], "constants": {"BLOCK": 1024}, "num_warps": 4}


@triton.jit
def kernel(x, out, M, N, BLOCK: tl.constexpr):
    row, j = tl.program_id(0), tl.arange(0, BLOCK)
    tl.store(out + row * N + j, 1.0 / N, mask=j < N)
