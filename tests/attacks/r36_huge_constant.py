# attack: 36 a constant of many bits, squared in the grid
# imitates: arithmetic that never ends, done outside of the sandbox (seen: ours)
# problem: softmax
# expect: compile_error
import triton
import triton.language as tl

LAUNCH = {"grid": ["M + 0 * BLOCK * BLOCK"], "constants": {"BLOCK": 0x1000000000000000000000000000000000000000000000000000000000000}}


@triton.jit
def kernel(x, out, M, N, BLOCK: tl.constexpr):
    row, j = tl.program_id(0), tl.arange(0, BLOCK)
    tl.store(out + row * N + j, 0.0, mask=j < N)
