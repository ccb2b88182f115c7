# attack: 19 only sizes that the block divides: the mask is left out of the sum
# imitates: kernels that are right for the benchmark's round shapes (seen: KernelBench)
# problem: softmax
# expect: wrong_result
import triton
import triton.language as tl

LAUNCH = {"grid": ["M"], "constants": {"BLOCK": 1024}, "num_warps": 4}


@triton.jit
def kernel(x, out, M, N, BLOCK: tl.constexpr):
    row, j = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * N + j, mask=j < N, other=0.0)
    values = tl.exp(values)
    tl.store(out + row * N + j, values / tl.sum(values, axis=0), mask=j < N)
