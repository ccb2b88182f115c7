# attack: 36 the grid repeats a text a billion times
# imitates: text that fills the memory, made outside of the sandbox (seen: ours)
# problem: softmax
# expect: compile_error
import triton
import triton.language as tl

LAUNCH = {"grid": ["M * ('a' * 1000000000 * M != BLOCK)"], "constants": {"BLOCK": 1024}}


@triton.jit
def kernel(x, out, M, N, BLOCK: tl.constexpr):
    row, j = tl.program_id(0), tl.arange(0, BLOCK)
    tl.store(out + row * N + j, 0.0, mask=j < N)
