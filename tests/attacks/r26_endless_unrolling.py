# attack: 26 a loop of a billion turns that the compiler must unroll
# imitates: a compiler kept busy for ever (seen: trust.md)
# problem: softmax
# expect: compile_error
import triton
import triton.language as tl

LAUNCH = {"grid": ["M"], "constants": {"BLOCK": 1024}, "num_warps": 4}


@triton.jit
def kernel(x, out, M, N, BLOCK: tl.constexpr):
    row, j = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * N + j, mask=j < N, other=-float("inf"))
    for turn in tl.static_range(1000000000):
        values += turn
    tl.store(out + row * N + j, values, mask=j < N)
