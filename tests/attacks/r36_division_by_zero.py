# attack: 36 the grid divides by zero on the second case
# imitates: a launch that fails after it was read (seen: ours)
# problem: softmax
# expect: compile_error
import triton
import triton.language as tl

LAUNCH = {"grid": ["M / (N - N)"], "constants": {"BLOCK": 1024}}


@triton.jit
def kernel(x, out, M, N, BLOCK: tl.constexpr):
    row, j = tl.program_id(0), tl.arange(0, BLOCK)
    tl.store(out + row * N + j, 0.0, mask=j < N)
